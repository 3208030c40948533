package libvirt

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

func noMetadata() error {
	return failure(libvirt.ERR_NO_DOMAIN_METADATA, libvirt.FROM_DOMAIN, "metadata not found: Requested metadata element is not present")
}

// GetMetadata returns title, description, or the element of a namespace, without that namespace.
func (d *Domain) GetMetadata(kind libvirt.DomainMetadataType, uri string, flags libvirt.DomainModificationImpact) (string, error) {
	return domainCall(d, "GetMetadata", "", func(m *machine) (string, error) {
		defs, err := m.affected(flags)
		if err != nil {
			return "", err
		}

		def, text := defs[0], ""

		switch kind {
		case libvirt.DOMAIN_METADATA_TITLE:
			text = def.Title
		case libvirt.DOMAIN_METADATA_DESCRIPTION:
			text = def.Description
		default:
			for _, e := range metadataOf(def) {
				if e.uri == uri && text == "" {
					text = e.plain
				}
			}
		}

		if text == "" {
			return "", noMetadata()
		}

		return text, nil
	})
}

// SetMetadata sets title, description, or the element of a namespace; an empty text takes it away.
func (d *Domain) SetMetadata(kind libvirt.DomainMetadataType, text, key, uri string, flags libvirt.DomainModificationImpact) error {
	h := d.conn.h

	_, err := domainCall(d, "SetMetadata", text, func(m *machine) (none, error) {
		return none{}, h.jobLocked(m, "SetMetadata", func() error {
			defs, err := m.affected(flags)
			if err != nil {
				return err
			}

			for _, def := range defs {
				if err := setMetadata(def, kind, text, key, uri); err != nil {
					return err
				}
			}

			h.domainEventLocked(m, metadataEvent, &libvirt.DomainEventMetadataChange{Type: kind, NSURI: uri})

			return nil
		})
	})

	return err
}

// affected returns the descriptions that the flags mean: what runs, the definition, or both.
func (m *machine) affected(flags libvirt.DomainModificationImpact) ([]*libvirtxml.Domain, error) {
	live, config := flags&libvirt.DOMAIN_AFFECT_LIVE != 0, flags&libvirt.DOMAIN_AFFECT_CONFIG != 0

	if !live && !config {
		live, config = m.active(), !m.active()
	}

	switch {
	case live && !m.active():
		return nil, notRunning()
	case config && !m.persistent():
		return nil, notValid(libvirt.FROM_DOMAIN, "transient domains do not have any persistent config")
	case live && config:
		return []*libvirtxml.Domain{m.live, m.def}, nil
	case live:
		return []*libvirtxml.Domain{m.live}, nil
	default:
		return []*libvirtxml.Domain{m.def}, nil
	}
}

func setMetadata(def *libvirtxml.Domain, kind libvirt.DomainMetadataType, text, key, uri string) error {
	switch kind {
	case libvirt.DOMAIN_METADATA_TITLE:
		if strings.Contains(text, "\n") {
			return failure(libvirt.ERR_INVALID_ARG, libvirt.FROM_DOMAIN, "metadata title can't contain newlines")
		}

		def.Title = text

		return nil
	case libvirt.DOMAIN_METADATA_DESCRIPTION:
		def.Description = text

		return nil
	}

	if key == "" {
		return failure(libvirt.ERR_INVALID_ARG, libvirt.FROM_DOMAIN, "key in virDomainSetMetadata must not be NULL")
	}

	var b strings.Builder

	for _, e := range metadataOf(def) {
		if e.uri != uri {
			b.WriteString(e.whole)
		}
	}

	if text != "" {
		added, err := splitElements(text)
		if err != nil || len(added) != 1 {
			return malformed(libvirt.FROM_DOMAIN, "metadata_xml", err)
		}

		b.WriteString(added[0].named(key, uri))
	}

	def.Metadata = &libvirtxml.DomainMetadata{XML: b.String()}
	if b.Len() == 0 {
		def.Metadata = nil
	}

	return nil
}

// element is an element of a domain's metadata.
type element struct {
	uri string
	// whole is its text as it stands, plain the one without its own namespace.
	whole, plain string
}

// named is the element with its namespace and a prefix for it. A namespace that its text had by itself stays.
func (e element) named(key, uri string) string {
	before, tag, rest := cutTag(e.plain)

	text := before + key + ":" + tag
	if e.uri == uri {
		text += ` xmlns="` + uri + `"`
	}

	text += " xmlns:" + key + `="` + uri + `"` + rest

	if i := strings.LastIndex(text, "</"+tag+">"); i >= 0 {
		text = text[:i] + "</" + key + ":" + tag + ">"
	}

	return text
}

// cutTag splits the text of an element around its name.
func cutTag(text string) (before, tag, rest string) {
	end := strings.IndexAny(text, " \t\n/>")

	return text[:1], text[1:end], text[end:]
}

func metadataOf(def *libvirtxml.Domain) []element {
	if def.Metadata == nil {
		return nil
	}

	elements, _ := splitElements(def.Metadata.XML) // It has been read before.

	return elements
}

// splitElements returns the elements of a piece of XML.
func splitElements(text string) ([]element, error) {
	decoder := xml.NewDecoder(strings.NewReader(text))

	var out []element

	for {
		before := decoder.InputOffset()

		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return out, nil
		}

		if err != nil {
			return nil, err
		}

		start, ok := token.(xml.StartElement)
		if !ok {
			continue
		}

		plain, err := plainText(decoder, start, start.Name.Space, 0)
		if err != nil {
			return nil, err
		}

		out = append(out, element{uri: start.Name.Space, whole: text[before:decoder.InputOffset()], plain: plain})
	}
}

// plainText is the text of an element, whose start was read, without a namespace, as libvirt writes it: elements that hold
// nothing but elements are spread over lines.
func plainText(decoder *xml.Decoder, start xml.StartElement, uri string, depth int) (string, error) {
	var (
		head, body strings.Builder
		children   []string
		words      bool
		declared   bool
	)

	head.WriteString("<" + start.Name.Local)

	for _, a := range start.Attr {
		namespace := a.Name.Space == "xmlns" || a.Name.Space == "" && a.Name.Local == "xmlns"
		if namespace && a.Value == uri && !declared {
			declared = true

			continue
		}

		name := a.Name.Local
		if a.Name.Space == "xmlns" {
			name = "xmlns:" + name
		}

		head.WriteString(" " + name + `="`)
		_ = xml.EscapeText(&head, []byte(a.Value)) // Writing to memory does not fail.
		head.WriteString(`"`)
	}

	for {
		token, err := decoder.Token()
		if err != nil {
			return "", err
		}

		switch t := token.(type) {
		case xml.StartElement:
			child, err := plainText(decoder, t, uri, depth+1)
			if err != nil {
				return "", err
			}

			children = append(children, child)
			body.WriteString(child)
		case xml.CharData:
			words = words || strings.TrimSpace(string(t)) != ""
			_ = xml.EscapeText(&body, t) // Writing to memory does not fail.
		case xml.EndElement:
			end := "</" + start.Name.Local + ">"

			switch {
			case !words && len(children) == 0:
				return head.String() + "/>", nil
			case words:
				return head.String() + ">" + body.String() + end, nil
			default:
				indent := "\n" + strings.Repeat("  ", depth)

				return head.String() + ">" + indent + "  " + strings.Join(children, indent+"  ") + indent + end, nil
			}
		}
	}
}
