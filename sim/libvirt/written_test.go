package libvirt

import "testing"

func TestDescriptionsAreWrittenAsLibvirtDoes(t *testing.T) {
	for in, want := range map[string]string{
		`<a b="c" d="it&#39;s &#34;it&#34;">don&#39;t &#34;</a>`: `<a b='c' d='it&apos;s &quot;it&quot;'>don't "</a>` + "\n",
		`<a b="o'neill" c='x'/>`:                                 `<a b='o&apos;neill' c='x'/>` + "\n",
		`<a>text</a>`:                                            "<a>text</a>\n",
	} {
		if got := written(in); got != want {
			t.Errorf("written(%s):\n got %s\nwant %s", in, got, want)
		}
	}
}
