// Package image builds the bootable images of a simulated image factory: Debian's cloud kernel and cmd/talos-init, on a disk
// that boots with BIOS and with UEFI. It runs programs of Debian packages, none of them as root. cmd/image-factory-sim and tests
// with real guests import it.
package image

import (
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/klauspost/compress/zstd"
	"golang.org/x/sync/singleflight"

	"github.com/omni-infra/omni-infra-providers/sim/factory"
)

// buildTimeout bounds the building of one image, the download of a kernel included.
const buildTimeout = 15 * time.Minute

// Builder builds images and keeps them in a directory. It is safe for concurrent use, also by several processes with one
// directory.
type Builder struct {
	// Dir holds everything that was built. It is made when it is missing.
	Dir string
	// Init is the file of the guest's init, built for linux/amd64 without cgo; empty means to build it with Go, which takes the
	// sources of this module.
	Init string
	// Kernel is a directory with a file vmlinuz and a directory modules; empty means that of Debian, downloaded once.
	Kernel string
	// Roots are PEM certificates that guests trust when they join over TLS.
	Roots []byte

	flights singleflight.Group
	mu      sync.Mutex
	parts   *parts
}

// Open returns an image, after building it if it is the first time. Callers that ask for the same image while it is built wait
// for one and the same build, which goes on when the first of them leaves. What cannot be built wraps factory.ErrNoImage.
func (b *Builder) Open(ctx context.Context, image factory.Image) (factory.File, error) {
	if image.Arch != "amd64" || image.SecureBoot {
		return nil, fmt.Errorf("only amd64 without secure boot can be built: %w", factory.ErrNoImage)
	}

	name, err := b.Path(ctx, image)
	if err != nil {
		return nil, err
	}

	return os.Open(name)
}

// Path is Open for those who want the name of the file.
func (b *Builder) Path(ctx context.Context, image factory.Image) (string, error) {
	key, err := json.Marshal(image)
	if err != nil {
		return "", err
	}

	result := b.flights.DoChan(string(key), func() (any, error) {
		building, cancel := context.WithTimeout(context.WithoutCancel(ctx), buildTimeout)
		defer cancel()

		return b.build(building, image)
	})

	select {
	case <-ctx.Done():
		return "", ctx.Err()
	case done := <-result:
		if done.Err != nil {
			return "", fmt.Errorf("build %s of schematic %s: %w", image.Name(), image.ID, done.Err)
		}

		return done.Val.(string), nil //nolint:forcetypeassert // What build returns.
	}
}

// Prepare does what all images have in common, so that the first of them is built fast and a missing tool is found early.
func (b *Builder) Prepare(ctx context.Context) error {
	_, err := b.common(ctx)

	return err
}

// common returns what all images are made of. A failure is not kept: the next call tries again.
func (b *Builder) common(ctx context.Context) (parts, error) {
	b.mu.Lock()
	defer b.mu.Unlock()

	if b.parts != nil {
		return *b.parts, nil
	}

	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		return parts{}, err
	}

	made, err := b.prepare(ctx)
	if err == nil {
		b.parts = &made
	}

	return made, err
}

func (b *Builder) build(ctx context.Context, image factory.Image) (string, error) {
	parts, err := b.common(ctx)
	if err != nil {
		return "", err
	}

	key, err := json.Marshal(struct {
		Image factory.Image
		Parts string
		Roots []byte
	}{image, parts.sum, b.Roots})
	if err != nil {
		return "", err
	}

	sum := sha256.Sum256(key)
	name := filepath.Join(b.Dir, hex.EncodeToString(sum[:16])+"-"+image.Name())

	if _, err = os.Stat(name); err == nil {
		return name, nil
	}

	raw := image
	raw.Format = "raw"

	switch image.Format {
	case "raw":
		err = b.publishDisk(ctx, name, parts, image)
	case "iso":
		err = b.publishISO(ctx, name, parts, image)
	default:
		var disk string

		if disk, err = b.Path(ctx, raw); err == nil {
			err = b.publish(name, func(temporary string) error { return convert(ctx, temporary, disk, image.Format) })
		}
	}

	return name, err
}

func (b *Builder) publishDisk(ctx context.Context, name string, parts parts, image factory.Image) error {
	return b.publish(name, func(temporary string) error {
		return b.writeDisk(ctx, temporary, parts, image, filepath.Dir(temporary), true)
	})
}

// publishISO makes an image for a CD drive. With BIOS it boots the raw disk as an emulated hard disk, with UEFI its file system.
func (b *Builder) publishISO(ctx context.Context, name string, parts parts, image factory.Image) error {
	return b.publish(name, func(temporary string) error {
		work := filepath.Dir(temporary)
		tree := filepath.Join(work, "tree")

		if err := os.Mkdir(tree, 0o755); err != nil {
			return err
		}

		if err := b.writeDisk(ctx, filepath.Join(tree, "disk.img"), parts, image, work, false); err != nil {
			return err
		}

		size, err := bootSize(parts)
		if err != nil {
			return err
		}

		efi := filepath.Join(tree, "efi.img")
		if err = os.WriteFile(efi, nil, 0o644); err != nil {
			return err
		}

		if err = os.Truncate(efi, size); err != nil {
			return err
		}

		if err = b.writeFAT(ctx, efi, 0, size, parts, image, work); err != nil {
			return err
		}

		return run(ctx, nil, "xorriso", "-as", "mkisofs", "-quiet", "-V", "TALOS", "-o", temporary,
			"-b", "disk.img", "-hard-disk-boot",
			"-eltorito-alt-boot", "-e", "efi.img", "-no-emul-boot", tree)
	})
}

// convert writes disk in another format.
func convert(ctx context.Context, to, disk, format string) error {
	switch format {
	case "raw.xz":
		return compress(to, disk, func(w io.Writer) (io.WriteCloser, error) { return newStoredXZ(w), nil })
	case "qcow2":
		return run(ctx, nil, "qemu-img", "convert", "-f", "raw", "-O", "qcow2", "-o", "cluster_size=8k", disk, to)
	case "raw.gz":
		return compress(to, disk, func(w io.Writer) (io.WriteCloser, error) { return gzip.NewWriterLevel(w, gzip.BestSpeed) })
	case "raw.zst":
		return compress(to, disk, func(w io.Writer) (io.WriteCloser, error) {
			return zstd.NewWriter(w, zstd.WithEncoderLevel(zstd.SpeedFastest))
		})
	default:
		return fmt.Errorf("format %q: %w", format, factory.ErrNoImage)
	}
}

func compress(to, disk string, encoder func(io.Writer) (io.WriteCloser, error)) error {
	source, err := os.Open(disk)
	if err != nil {
		return err
	}
	defer source.Close() //nolint:errcheck // Only read from.

	target, err := os.Create(to)
	if err != nil {
		return err
	}
	defer target.Close() //nolint:errcheck // Closed below as well.

	packed, err := encoder(target)
	if err != nil {
		return err
	}

	if _, err = io.Copy(packed, source); err != nil {
		return err
	}

	return errors.Join(packed.Close(), target.Close())
}

// publish lets write make a file or directory under a temporary name, alone in a directory of its own, and moves it to where it
// belongs only when it is whole.
func (b *Builder) publish(name string, write func(temporary string) error) error {
	work, err := os.MkdirTemp(b.Dir, ".building-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work) //nolint:errcheck // A temporary directory.

	temporary := filepath.Join(work, filepath.Base(name))
	if err = write(temporary); err != nil {
		return err
	}

	if err = os.Rename(temporary, name); err != nil {
		if _, exists := os.Stat(name); exists == nil { // Another process was faster.
			return nil
		}
	}

	return err
}
