package libvirt

import "strings"

// quotes are what encoding/xml makes of quotes, and what libvirt makes of them in an attribute and in a text.
var (
	inAttribute = strings.NewReplacer("&#34;", "&quot;", "&#39;", "&apos;", "'", "&apos;")
	inText      = strings.NewReplacer("&#34;", `"`, "&#39;", "'")
)

// written puts a document that encoding/xml has made into the form in which libvirt writes it: with apostrophes around attributes. Some who
// read descriptions look for parts of their text.
func written(doc string) string {
	var out strings.Builder

	for doc != "" {
		tag := strings.IndexByte(doc, '<')
		if tag < 0 {
			tag = len(doc)
		}

		out.WriteString(inText.Replace(doc[:tag]))
		doc = doc[tag:]

		// No raw > is in an attribute, but quotes may be around either kind.
		end := strings.IndexByte(doc, '>') + 1
		if end == 0 {
			end = len(doc)
		}

		for element := doc[:end]; element != ""; {
			open := strings.IndexAny(element, `"'`)
			if open < 0 {
				out.WriteString(element)

				break
			}

			value := element[open+1:]

			length := strings.IndexByte(value, element[open])
			if length < 0 {
				out.WriteString(element)

				break
			}

			out.WriteString(element[:open] + "'" + inAttribute.Replace(value[:length]) + "'")
			element = value[length+1:]
		}

		doc = doc[end:]
	}

	return out.String() + "\n"
}
