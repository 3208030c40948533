package oxide

import (
	"cmp"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"slices"
	"strconv"
)

// maxToken is how long the token of a page may be.
const maxToken = 512

// The orders in which pages are sorted.
const (
	nameAscending  = "name_ascending"
	nameDescending = "name_descending"
	idAscending    = "id_ascending"
)

// mark is what the token of a page says: where it begins, in which order, and what it is a page of.
type mark struct {
	Version string `json:"v"`
	Start   struct {
		SortBy   string `json:"sort_by"`
		Scope    string `json:"project,omitempty"`
		LastSeen string `json:"last_seen"`
	} `json:"page_start"`
}

func (m mark) token() string {
	text, err := json.Marshal(m)
	if err != nil {
		panic(err)
	}

	return base64.URLEncoding.EncodeToString(text)
}

// readMark reads the token of a page.
func readMark(token string) (m mark, err error) {
	if len(token) > maxToken {
		return m, badQuery("failed to parse pagination token: too large")
	}

	text, err := base64.URLEncoding.DecodeString(token)
	if err != nil {
		return m, badQuery("failed to parse pagination token: " + err.Error())
	}

	if err := json.Unmarshal(text, &m); err != nil || !isOrder(m.Start.SortBy) {
		return m, badQuery("failed to parse pagination token: corrupted token")
	}

	if m.Version != "v1" {
		return m, badQuery("failed to parse pagination token: unsupported version: " + strconv.Quote(m.Version))
	}

	return m, nil
}

func isOrder(text string) bool {
	return text == nameAscending || text == nameDescending || text == idAscending
}

func badQuery(problem string) error { return badRequest("unable to parse query string: %s", problem) }

type results[V any] struct {
	Items []V     `json:"items"`
	Next  *string `json:"next_page"`
}

// paging is what a list call asks for.
type paging struct {
	limit int
	mark  mark
	next  bool // It is not the first page.
}

func (c *call) paging() (p paging, err error) {
	p.limit = min(defaultPage, c.opts.PageLimit)
	p.mark.Version, p.mark.Start.SortBy, p.mark.Start.Scope = "v1", nameAscending, c.query.Get("project")

	if text := c.query.Get("limit"); text != "" {
		n, err := strconv.ParseUint(text, 10, 32)
		if err != nil || n == 0 {
			return p, badQuery("invalid limit: expected a nonzero u32")
		}

		p.limit = int(min(n, uint64(c.opts.PageLimit)))
	}

	if token := c.query.Get("page_token"); token != "" {
		p.mark, err = readMark(token)
		p.next = true

		return p, err
	}

	if order := c.query.Get("sort_by"); order != "" {
		if !isOrder(order) {
			return p, badQuery("unknown variant `" + order + "`, expected one of `name_ascending`, `name_descending`, `id_ascending`")
		}

		p.mark.Start.SortBy = order
	}

	return p, nil
}

// listed answers with one page of the rows.
func listed[T resource, V any](p paging, rows []T, view func(T) V) (int, any, error) {
	key := func(row T) string {
		if p.mark.Start.SortBy == idAscending {
			return row.base().id
		}

		return row.base().name
	}

	compare := cmp.Compare[string]
	if p.mark.Start.SortBy == nameDescending {
		compare = func(a, b string) int { return cmp.Compare(b, a) }
	}

	rows = slices.Clone(rows)
	slices.SortStableFunc(rows, func(a, b T) int { return compare(key(a), key(b)) })

	if p.next {
		rows = slices.DeleteFunc(rows, func(row T) bool { return compare(key(row), p.mark.Start.LastSeen) <= 0 })
	}

	page := results[V]{Items: []V{}}

	for _, row := range rows[:min(len(rows), p.limit)] {
		page.Items = append(page.Items, view(row))
	}

	// As the real one does, a page that is not empty names a next one, which may turn out to be empty.
	if n := len(page.Items); n > 0 {
		p.mark.Start.LastSeen = key(rows[n-1])
		page.Next = new(p.mark.token())
	}

	return http.StatusOK, page, nil
}
