package oxide_test

import (
	"net/http"
	"strings"
	"testing"

	api "github.com/oxidecomputer/oxide.go/oxide"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/sim/oxide"
)

func TestIDComesWithoutAProjectAndNameWithOne(t *testing.T) {
	inBubble(t, oxide.Options{Projects: []string{"default", "other"}}, func(b *bench) {
		d, err := b.disk("data", blank(), gib)
		require.NoError(t, err)

		view := func(disk, project string) error {
			_, err := b.DiskView(b.ctx(), api.DiskViewParams{Disk: api.NameOrId(disk), Project: api.NameOrId(project)})

			return err
		}

		require.NoError(t, view(d.Id, ""))
		require.NoError(t, view("data", "default"))
		require.NoError(t, view("data", d.ProjectId))
		requireNo(t, view(d.Id, "default"), api.ErrInvalidRequest, "when providing disk as an ID project should not be specified")
		requireNo(t, view("data", ""), api.ErrInvalidRequest, "disk should either be UUID or project should be specified")
		requireNo(t, view("data", "other"), api.ErrObjectNotFound, `not found: disk with name "data"`)
		requireNo(t, view("data", "none"), api.ErrObjectNotFound, "not found: project with name")
		requireNo(t, view("00000000-0000-4000-8000-000000000000", ""), api.ErrObjectNotFound, "not found: disk with id")
		requireNo(t, view("Data", "default"), api.ErrHTTP400, "bad parameter in URL path")
	})
}

func TestNamesAreUniqueInTheirProject(t *testing.T) {
	inBubble(t, oxide.Options{Projects: []string{"default", "other"}}, func(b *bench) {
		_, err := b.disk("data", blank(), gib)
		require.NoError(t, err)

		_, err = b.disk("data", blank(), gib)
		requireNo(t, err, api.ErrObjectAlreadyExists, `already exists: disk "data"`)
		require.ErrorIs(t, err, api.ErrHTTP400)

		_, err = b.DiskCreate(b.ctx(), api.DiskCreateParams{Project: "other", Body: &api.DiskCreate{
			Name: "data", Description: "d", Size: gib, DiskBackend: blank(),
		}})
		require.NoError(t, err)

		b.instance(spec("one", ""))
		_, err = b.create(spec("one", ""))
		requireNo(t, err, api.ErrObjectAlreadyExists, `already exists: instance "one"`)
	})
}

func TestNamesHaveTheirForm(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		for name, problem := range map[string]string{
			"a": "", "a-B-9": "", strings.Repeat("a", 63): "",
			strings.Repeat("a", 64):                "at most 63 characters",
			"Abc":                                  "must begin with an ASCII lowercase character",
			"9a":                                   "must begin with an ASCII lowercase character",
			"a_b":                                  "invalid character",
			"a.b":                                  "invalid character",
			"a-":                                   `cannot end with "-"`,
			"d00dfeed-0000-4000-8000-000000000000": "cannot be a UUID",
		} {
			_, err := b.disk(name, blank(), gib)
			if problem == "" {
				require.NoError(t, err, name)
			} else {
				requireNo(t, err, api.ErrHTTP400, problem)
			}
		}
	})
}

func TestPagesGoThroughAllInEachOrder(t *testing.T) {
	inBubble(t, oxide.Options{PageLimit: 2}, func(b *bench) {
		ids := map[string]string{}

		for _, name := range []string{"c", "a", "e", "b", "d"} {
			d, err := b.disk(name, blank(), gib)
			require.NoError(t, err)

			ids[d.Id] = name
		}

		names := func(order api.NameOrIdSortMode) (names []string) {
			all, err := b.DiskListAllPages(b.ctx(), api.DiskListParams{Project: project, SortBy: order})
			require.NoError(t, err)

			for _, d := range all {
				require.Equal(t, ids[d.Id], string(d.Name))
				names = append(names, string(d.Name))
			}

			return names
		}

		require.Equal(t, []string{"a", "b", "c", "d", "e"}, names(""))
		require.Equal(t, []string{"a", "b", "c", "d", "e"}, names(api.NameOrIdSortModeNameAscending))
		require.Equal(t, []string{"e", "d", "c", "b", "a"}, names(api.NameOrIdSortModeNameDescending))
		require.ElementsMatch(t, []string{"a", "b", "c", "d", "e"}, names(api.NameOrIdSortModeIdAscending))

		first, err := b.DiskList(b.ctx(), api.DiskListParams{Project: project, Limit: new(1)})
		require.NoError(t, err)
		require.Len(t, first.Items, 1)
		require.NotEmpty(t, first.NextPage)

		// What is deleted between two pages is not there, and what is made is: a page goes on after the last name.
		second, err := b.DiskList(b.ctx(), api.DiskListParams{Project: project, PageToken: first.NextPage, Limit: new(5)})
		require.NoError(t, err)
		require.Len(t, second.Items, 2, "the rack's own limit")

		_, err = b.DiskList(b.ctx(), api.DiskListParams{Project: project, PageToken: "q"})
		requireNo(t, err, api.ErrHTTP400, "failed to parse pagination token")
		_, err = b.DiskList(b.ctx(), api.DiskListParams{Project: project, SortBy: "size"})
		requireNo(t, err, api.ErrHTTP400, "unknown variant `size`")
		_, err = b.DiskList(b.ctx(), api.DiskListParams{Project: project, Limit: new(0)})
		requireNo(t, err, api.ErrHTTP400, "nonzero")
		_, err = b.DiskList(b.ctx(), api.DiskListParams{})
		requireNo(t, err, api.ErrHTTP400, "missing field `project`")
	})
}

func TestProjectThatHoldsSomethingStays(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		p, err := b.ProjectCreate(b.ctx(), api.ProjectCreateParams{Body: &api.ProjectCreate{Name: "mine", Description: "d"}})
		require.NoError(t, err)

		vpcs, err := b.VpcListAllPages(b.ctx(), api.VpcListParams{Project: "mine"})
		require.NoError(t, err)
		require.Len(t, vpcs, 1, "a project comes with one")

		d, err := b.DiskCreate(b.ctx(), api.DiskCreateParams{Project: "mine", Body: &api.DiskCreate{
			Name: "data", Description: "d", Size: gib, DiskBackend: blank(),
		}})
		require.NoError(t, err)

		remove := func() error { return b.ProjectDelete(b.ctx(), api.ProjectDeleteParams{Project: api.NameOrId(p.Id)}) }
		requireNo(t, remove(), api.ErrInvalidRequest, "project to be deleted contains a disk: mine")
		require.NoError(t, b.DiskDelete(b.ctx(), api.DiskDeleteParams{Disk: api.NameOrId(d.Id)}))

		_, err = b.ProjectUpdate(b.ctx(), api.ProjectUpdateParams{Project: "mine", Body: &api.ProjectUpdate{Name: "renamed"}})
		require.NoError(t, err)
		_, err = b.ProjectView(b.ctx(), api.ProjectViewParams{Project: "mine"})
		require.ErrorIs(t, err, api.ErrObjectNotFound)
		require.NoError(t, remove())
		require.Empty(t, b.Ledger().Leaks())
	})
}

func TestCallThatIsNotModelledIsALeak(t *testing.T) {
	inBubble(t, oxide.Options{}, func(b *bench) {
		resp, err := b.Transport(nil).RoundTrip(request(t, b, http.MethodGet, "/v1/metrics/cpu", ""))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusNotFound, resp.StatusCode)
		require.Equal(t, []string{"unmodelled call GET /v1/metrics/cpu is left"}, b.Ledger().Leaks())
	})
}
