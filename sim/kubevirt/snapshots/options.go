package snapshots

import "time"

// Options shape the controller. The zero value takes no time for anything.
type Options struct {
	// Take is how long a driver takes until a snapshot can be used.
	Take time.Duration
	// Restoring says whether a volume is being made from a snapshot by means that are no claim with that source; nil knows of none. It may
	// be called from several goroutines.
	Restoring func(namespace, name string) bool
	// Failed is told of errors of the controller itself; nil means nobody is.
	Failed func(key string, err error)
}

// Fault is something that goes wrong with snapshots until it is taken back.
type Fault struct {
	// Snapshot is what namespace and name, joined by a slash, begin with; empty is any.
	Snapshot string
	// Message is what the driver answers when it is asked for a snapshot. It is asked again after a growing pause.
	Message string
	// Times is how many attempts fail; 0 is all while the fault lasts.
	Times int
	// Slow keeps the driver from ever being done while the fault lasts.
	Slow bool
	// Absent is a cluster with the kinds of snapshots and no controller that looks after them.
	Absent bool
}
