package libvirt

import (
	"encoding/xml"
	"errors"
	"io"
	"strings"

	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"
)

// validateDomain refuses elements and attributes that a domain does not have, as libvirt's schema does: what is lost when the
// document is read and written again is none of libvirt's.
func validateDomain(doc string, def *libvirtxml.Domain) error {
	known, err := def.Marshal()
	if err != nil {
		return internal(libvirt.FROM_DOMAIN, "%s", err)
	}

	have, err := pathsOf(known)
	if err != nil {
		return malformed(libvirt.FROM_DOMAIN, "domain_definition", err)
	}

	want, err := pathsOf(doc)
	if err != nil {
		return malformed(libvirt.FROM_DOMAIN, "domain_definition", err)
	}

	for _, path := range want.order {
		if have.count[path] >= want.count[path] {
			continue
		}

		parent, name := "domain", path
		if i := strings.LastIndexByte(path, '/'); i >= 0 {
			parent, name = path[:i], path[i+1:]
			parent = parent[strings.LastIndexByte(parent, '/')+1:]
		}

		return failure(libvirt.ERR_XML_INVALID_SCHEMA, libvirt.FROM_XML,
			"XML document failed to validate against schema: Unable to validate doc against /usr/share/libvirt/schemas/domain.rng\n"+
				"Element %s has extra content: %s\n", parent, strings.TrimPrefix(name, "@"))
	}

	return nil
}

type paths struct {
	order []string
	count map[string]int
}

// pathsOf counts the elements ("domain/os/type") and attributes ("domain/os/type/@arch") of a document, but for those of metadata.
func pathsOf(doc string) (paths, error) {
	decoder := xml.NewDecoder(strings.NewReader(doc))
	found := paths{count: map[string]int{}}
	see := func(path string) {
		if found.count[path]++; found.count[path] == 1 {
			found.order = append(found.order, path)
		}
	}

	var at []string

	for {
		token, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			return found, nil
		}

		if err != nil {
			return found, err
		}

		switch t := token.(type) {
		case xml.StartElement:
			at = append(at, t.Name.Local)
			path := strings.Join(at, "/")
			see(path)

			if path == "domain/metadata" {
				if err := decoder.Skip(); err != nil {
					return found, err
				}

				at = at[:len(at)-1]

				continue
			}

			for _, attr := range t.Attr {
				if attr.Name.Space != "xmlns" && attr.Name.Local != "xmlns" {
					see(path + "/@" + attr.Name.Local)
				}
			}
		case xml.EndElement:
			at = at[:len(at)-1]
		}
	}
}
