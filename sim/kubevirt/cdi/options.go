package cdi

import (
	"context"
	"errors"
	"time"
)

// Options shape the controller. The zero value takes no time for anything, and finds an image that fits at every URL.
type Options struct {
	// Times are how long things take.
	Times Times
	// Fetch is how an import gets its image. An error is one of the importer's, which tries again after a growing pause, unless it is a
	// *FatalError. Nil finds an image that fits everywhere.
	Fetch func(ctx context.Context, s Source) (Image, error)
	// Node is where claims are bound that do not wait for a machine.
	Node string
	// Withheld says that no volume can be had for a claim for now, so that an importer has none to write to; nil means never.
	Withheld func(namespace, claim string) bool
	// Overhead is the part of a file system's size that a disk in it cannot use; 0.06 if zero, as in CDI's default configuration. Less
	// than zero is none.
	Overhead float64
	// CollectAfter deletes a DataVolume that long after it has succeeded and leaves its claim, as releases before 1.57 did by default
	// (dataVolumeTTLSeconds); zero never does.
	CollectAfter time.Duration
	// Failed is told of errors of the controller itself; nil means nobody is.
	Failed func(key string, err error)
}

// Times are how long things take. Zero is at once.
type Times struct {
	// Schedule is how long an importer or a cloner needs until it runs, Import how long it takes then, besides what Fetch takes, Clone how
	// long a clone takes.
	Schedule, Import, Clone time.Duration
}

// Source is where an image is imported from.
type Source struct {
	// URL is that of an http source (http or https), or of a registry (docker, oci-archive).
	URL string
	// Claim is the DataVolume's key, namespace and name.
	Claim string
}

// Image is what an import finds.
type Image struct {
	// VirtualSize is how many bytes its disk has.
	VirtualSize int64
}

// FatalError is an error after which CDI does not try again, as a checksum that does not match.
type FatalError struct{ Message string }

// Error returns the message.
func (e *FatalError) Error() string { return e.Message }

// Fault is something that goes wrong with imports and clones until it is taken back.
type Fault struct {
	// Volume is what namespace and name, joined by a slash, begin with; empty is any.
	Volume string
	// Message is the importer's last word. It stops with it, and is started again after a growing pause.
	Message string
	// Fatal lets the DataVolume fail for good.
	Fatal bool
	// Times is how many attempts fail; 0 is all while the fault lasts.
	Times int
	// Unschedulable keeps the importer from any node.
	Unschedulable bool
}

// err is what an attempt ends with.
func (f Fault) err() error {
	if f.Fatal {
		return &FatalError{Message: f.Message}
	}

	return errors.New(f.Message)
}

// defaultOverhead is common.DefaultGlobalOverhead of CDI v1.65.
const defaultOverhead = 0.06

func (o Options) overhead() float64 {
	switch {
	case o.Overhead == 0:
		return defaultOverhead
	case o.Overhead < 0:
		return 0
	default:
		return o.Overhead
	}
}
