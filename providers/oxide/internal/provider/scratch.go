package provider

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/oxidecomputer/oxide.go/oxide"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/providers/oxide/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

const (
	// clockSkew is how far the rack's clock may be from the provider's.
	clockSkew = 30 * time.Second
	// silence is for how long a process that acts is never silent: the library looks at the machines more often.
	silence = 10 * time.Minute
	// abandoned is the age from which an attempt is taken for dead that another process has begun after this one.
	abandoned = 6 * time.Hour
)

// attempts is what this process knows of attempts to import images.
type attempts struct {
	mu sync.Mutex
	// born is when the process began to act for the provider, and acted when it did so last: one that waits for the lease does not act. Of two
	// that act, the younger one is right, as the lease is its: it takes attempts that are older for dead, and the older process leaves the
	// younger one's alone.
	born, acted time.Time
	// own are this process's attempts.
	own map[string]*attempt
	// tidied are the projects, by their ids, in which no attempt of an earlier process is left.
	tidied map[string]bool
}

// attempt is one that this process has begun: going on as long as its context lasts, and over once it has been cleared away as far as that went.
type attempt struct {
	ctx  context.Context //nolint:containedctx // It is only looked at.
	over bool
}

// act notes that this process acts for the provider. After a silence another one may have done so, and left attempts of its own.
func (a *attempts) act() {
	a.mu.Lock()
	defer a.mu.Unlock()

	now := time.Now()
	if a.born.IsZero() || now.Sub(a.acted) > silence {
		a.born, a.tidied = now, nil
	}

	a.acted = now
}

func (a *attempts) begin(ctx context.Context, name string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.own == nil {
		a.own = map[string]*attempt{}
	}

	a.own[name] = &attempt{ctx: ctx}
}

// end notes that an attempt is over. It is kept in mind: should something of it be left after all, it is known to be dead.
func (a *attempts) end(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()

	a.own[name] = &attempt{over: true}
}

// dead says whether nobody works on an attempt any more.
func (a *attempts) dead(mark machine.Mark, created *time.Time) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	if one, own := a.own[mark.Attempt]; own {
		return one.over
	}

	return created == nil || !created.After(a.born.Add(clockSkew)) || time.Since(*created) > abandoned
}

func (a *attempts) isTidy(project string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	return a.tidied[project]
}

func (a *attempts) setTidy(project string, tidy bool) {
	a.mu.Lock()
	defer a.mu.Unlock()

	if a.tidied == nil {
		a.tidied = map[string]bool{}
	}

	a.tidied[project] = tidy
}

// ending says whether this process clears an attempt away.
func (a *attempts) ending(mark machine.Mark) bool {
	a.mu.Lock()
	defer a.mu.Unlock()

	one, own := a.own[mark.Attempt]

	return own && !one.over && one.ctx.Err() != nil
}

// tidy clears away what dead attempts have left in a project, unless this process has done so already.
func (d *Driver) tidy(ctx context.Context, providerID string, in project) error {
	if d.scratch.isTidy(in.id) {
		return nil
	}

	disks, err := d.rack.Disks(ctx, in.id)
	if err != nil {
		return err
	}

	d.clearDead(ctx, providerID, in, disks)

	return nil
}

// clearDead clears away what dead attempts have left in a project. What cannot be cleared now is tried again the next time.
func (d *Driver) clearDead(ctx context.Context, providerID string, in project, disks []oxide.Disk) {
	tidy := true

	for _, disk := range disks {
		mark, ours := machine.ScratchMark(providerID, string(disk.Name), disk.Description)
		if !ours || !d.scratch.dead(mark, disk.TimeCreated) {
			continue
		}

		err := d.clearScratch(ctx, in, disk)
		if err == nil || driver.IsNotFound(err) {
			continue
		}

		tidy = false

		if driver.KindOf(err) != driver.KindPending && ctx.Err() == nil {
			d.log.Warn("what an import that broke off has left cannot be deleted yet", zap.String("disk", string(disk.Name)),
				zap.String("project", in.name), zap.Error(err))
		}
	}

	d.scratch.setTidy(in.id, tidy)
}

// mostSteps is more than it takes to get a scratch disk from any state to where it can be deleted.
const mostSteps = 8

// clearScratch deletes a scratch disk, and the snapshot that was made of it, as far as the rack lets them go now: a disk that is being
// written to has to be told that the import is over, then to be finalized, before it can be deleted. It is Pending while the rack works.
func (d *Driver) clearScratch(ctx context.Context, in project, disk oxide.Disk) error {
	for range mostSteps {
		var err error

		switch state := disk.State.State(); state {
		case oxide.DiskStateStateImportingFromBulkWrites:
			err = d.rack.StopWrites(ctx, disk)
		case oxide.DiskStateStateImportReady:
			err = d.rack.Finalize(ctx, disk, "")
		case oxide.DiskStateStateDetached, oxide.DiskStateStateFaulted:
			// The disk goes last: it says whose the snapshot is, which has no mark of its own.
			if err := d.clearSnapshot(ctx, in, disk); err != nil {
				return err
			}

			return d.rack.DeleteDisk(ctx, disk)
		case oxide.DiskStateStateDestroyed:
			return nil
		default:
			return driver.Pending(soon, "disk %q of an import is %s", disk.Name, diskState(disk))
		}

		if err != nil {
			return err
		}

		if disk, err = d.rack.Disk(ctx, disk.Id); err != nil {
			return err
		}
	}

	return driver.Pending(pause, "disk %q of an import is %s", disk.Name, diskState(disk))
}

// snapshotOf returns the snapshot of a scratch disk, or not found. One look that says so is not believed, as nobody would find the snapshot
// when its disk has gone.
func (d *Driver) snapshotOf(ctx context.Context, in project, disk oxide.Disk) (oxide.Snapshot, error) {
	snapshot, err := d.rack.Snapshot(ctx, in.id, string(disk.Name))
	if !driver.IsNotFound(err) {
		return snapshot, err
	}

	all, listErr := d.rack.Snapshots(ctx, in.id)
	if listErr != nil {
		return snapshot, listErr
	}

	for _, s := range all {
		if s.DiskId == disk.Id && s.Name == disk.Name {
			return s, nil
		}
	}

	return snapshot, err
}

// clearSnapshot deletes the snapshot of a scratch disk.
func (d *Driver) clearSnapshot(ctx context.Context, in project, disk oxide.Disk) error {
	snapshot, err := d.snapshotOf(ctx, in, disk)

	switch {
	case driver.IsNotFound(err):
		return nil
	case err != nil:
		return err
	case snapshot.DiskId != disk.Id:
		return fmt.Errorf("snapshot %q is not one of the disk of that name: it is left alone", snapshot.Name)
	case snapshot.State == oxide.SnapshotStateDestroyed:
		return nil
	case snapshot.State == oxide.SnapshotStateCreating:
		return driver.Pending(soon, "snapshot %q is %s", snapshot.Name, snapshot.State)
	}

	err = d.rack.DeleteSnapshot(ctx, snapshot)
	if driver.IsNotFound(err) {
		// Once the disk is gone nothing says whose it is, so that it is looked for once more.
		return driver.Pending(soon, "snapshot %q is being deleted", snapshot.Name)
	}

	return err
}

// cleanupTimeout bounds the removal of an attempt that is over, which happens also when the work was cancelled.
const cleanupTimeout = time.Minute

// endAttempt clears an attempt away that is over, however it ended, and waits a while for the rack. What is still there then is cleared away before the next
// attempt, with the request, or by the sweep.
func (d *Driver) endAttempt(ctx context.Context, in project, s machine.Scratch) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout)
	defer cancel()

	defer context.AfterFunc(d.life, cancel)()

	err := d.clearAttempt(ctx, in, s)
	d.scratch.end(s.Mark.Attempt)

	if err != nil {
		d.scratch.setTidy(in.id, false)
		d.log.Warn("what an import has left cannot be deleted yet", zap.String("disk", s.Name), zap.String("project", in.name), zap.Error(err))
	}
}

func (d *Driver) clearAttempt(ctx context.Context, in project, s machine.Scratch) error {
	for {
		disk, err := d.rack.DiskNamed(ctx, in.id, s.Name)
		if err == nil {
			if mark, ours := machine.ScratchMark(s.Mark.Provider, string(disk.Name), disk.Description); !ours || mark.Attempt != s.Mark.Attempt {
				return nil
			}

			if err = d.clearScratch(ctx, in, disk); err == nil {
				return nil
			}
		} else if driver.IsNotFound(err) {
			return nil
		}

		if sleep(ctx, max(driver.PauseOf(err), soon)) != nil {
			return err
		}
	}
}

// sleep waits, or returns the error of ctx.
func sleep(ctx context.Context, pause time.Duration) error {
	select {
	case <-time.After(pause):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
