package talos

import (
	"bytes"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing/fstest"

	"github.com/kdomanski/iso9660"
)

// OpenISO returns the files at the top of the ISO 9660 image of a NoCloud seed. As in Talos the volume has to be labelled cidata
// or CIDATA; under any other label the image is no seed, and the error wraps fs.ErrNotExist. File names are the Rock Ridge ones,
// or, as Linux shows plain ISO 9660 names, in lower case without version.
func OpenISO(image io.ReaderAt) (fs.FS, error) {
	volume, err := iso9660.OpenImage(image)
	if err != nil {
		return nil, fmt.Errorf("open ISO 9660 image: %w", err)
	}

	label, err := volume.Label()
	if err != nil {
		return nil, fmt.Errorf("read ISO 9660 label: %w", err)
	}

	if !IsSeedLabel(label) {
		return nil, fmt.Errorf("ISO 9660 label is %q, want cidata: %w", strings.TrimRight(label, " \x00"), fs.ErrNotExist)
	}

	root, err := volume.RootDir()
	if err != nil {
		return nil, fmt.Errorf("read ISO 9660 root: %w", err)
	}

	children, err := root.GetChildren()
	if err != nil {
		return nil, fmt.Errorf("list ISO 9660 root: %w", err)
	}

	files := fstest.MapFS{}

	for _, child := range children {
		if child.IsDir() {
			continue
		}

		var data bytes.Buffer
		if _, err = io.Copy(&data, io.LimitReader(child.Reader(), maxConfig)); err != nil {
			return nil, fmt.Errorf("read %q: %w", child.Name(), err)
		}

		name := child.Name()
		if name == strings.ToUpper(name) {
			name = strings.ToLower(name)
		}

		files[name] = &fstest.MapFile{Data: data.Bytes(), Mode: 0o444}
	}

	return files, nil
}

// IsSeedLabel says whether Talos takes a volume with this label, padded or not, for a NoCloud seed.
func IsSeedLabel(label string) bool {
	label = strings.TrimRight(label, " \x00")

	return label == "cidata" || label == "CIDATA"
}
