package oxide

import (
	"regexp"
	"strings"
	"testing"
)

func FuzzPageToken(f *testing.F) {
	m := mark{Version: "v1"}
	m.Start.SortBy, m.Start.LastSeen = nameAscending, "a"

	for _, token := range []string{m.token(), "", "q", "e30=", strings.Repeat("A", maxToken+1)} {
		f.Add(token)
	}

	f.Fuzz(func(t *testing.T, token string) {
		m, err := readMark(token)
		if err != nil {
			return
		}

		if again, err := readMark(m.token()); len(m.token()) <= maxToken && (err != nil || again != m) {
			t.Errorf("%q is %+v, and %+v when it is written again: %v", token, m, again, err)
		}
	})
}

// The API's document has these forms; Go's expressions do not look around, so that the parts are tested one by one.
var (
	documentName     = regexp.MustCompile(`^[a-z]([a-zA-Z0-9-]*[a-zA-Z0-9]+)?$`)
	documentHostname = regexp.MustCompile(`^[a-zA-Z0-9]+[a-zA-Z0-9\-]*$`)
)

func FuzzNames(f *testing.F) {
	for _, name := range []string{"a", "A", "a-b", "a-", "-a", "a.b", "a\n", "d00dfeed-0000-4000-8000-000000000000", strings.Repeat("a", 64)} {
		f.Add(name)
	}

	f.Fuzz(func(t *testing.T, name string) {
		want := len(name) <= maxName && documentName.MatchString(name) && !isID(name)
		if got := checkName(name) == nil; got != want {
			t.Errorf("name %q is taken: %t, want %t", name, got, want)
		}

		want = name != "" && len(name) <= maxHostname

		for label := range strings.SplitSeq(name, ".") {
			want = want && documentHostname.MatchString(label) && !strings.HasSuffix(label, "-")
		}

		if got := checkHostname(name) == nil; got != want {
			t.Errorf("hostname %q is taken: %t, want %t", name, got, want)
		}
	})
}

func FuzzUserData(f *testing.F) {
	for _, text := range []string{"", "eA==", "eA", "e\nA==", "_-==", strings.Repeat("AAAA", maxUserData/3+1)} {
		f.Add(text)
	}

	f.Fuzz(func(t *testing.T, text string) {
		if data, err := readUserData(text); err == nil && len(data) > maxUserData {
			t.Errorf("%d bytes are taken", len(data))
		}
	})
}
