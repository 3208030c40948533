package oxide

import (
	"context"
	"encoding/json"
	"slices"

	"github.com/google/uuid"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

// SMBIOS is how a guest sees the UUID of its instance.
type SMBIOS int

// The ways in which guests see it.
const (
	// InstanceID is the id of the instance as it is.
	InstanceID SMBIOS = iota
	// Swapped is the id with the bytes of its first three fields in reverse, as those see it who read the bytes of the SMBIOS
	// table in the other order.
	Swapped
)

// Guest is what an instance is to the software that boots in it.
type Guest struct {
	// ID and Name are the instance's, UUID is that of SMBIOS.
	ID, Name, UUID string
	Hostname       string
	// Seed are the files of the volume "cidata", by their names: "meta-data", which is JSON, and "user-data", if there is some.
	Seed map[string][]byte
	// MACs are the hardware addresses of its interfaces, the primary one first.
	MACs []string
	// Image is the id of the image that the boot disk was made from, empty if it was made from none. The image may have gone.
	Image string
	// ImageText is its name and its description, ImageVersion its version, if it is still there.
	ImageText, ImageVersion string
	// CPUs and Memory, in bytes, are what the instance has.
	CPUs   int
	Memory int64
	// Boot is what is on the boot disk.
	Boot *Content

	rack     *Rack
	instance *instance
	run      *guest
}

// Reboot is the guest that restarts by itself. Its context ends; the boot function is to return.
func (g Guest) Reboot() {
	g.rack.mu.Lock()
	defer g.rack.mu.Unlock()

	if g.instance.guest == g.run && g.instance.state == api.InstanceStateRunning && !g.rack.closed {
		g.rack.rebootLocked(g.instance)
	}
}

// maxConsole is how much of the serial console is kept.
const maxConsole = 1 << 20

// Write writes to the serial console.
func (g Guest) Write(data []byte) (int, error) {
	g.rack.mu.Lock()
	defer g.rack.mu.Unlock()

	i := g.instance
	i.console = append(i.console, data...)

	if over := len(i.console) - maxConsole; over > 0 {
		i.console = slices.Clone(i.console[over:])
		i.consoleStart += int64(over)
	}

	return len(data), nil
}

// guest is one run of Options.Boot.
type guest struct {
	cancel context.CancelFunc
	done   chan struct{}
}

// stop tells the guest to end. It does not wait.
func (g *guest) stop() {
	if g != nil {
		g.cancel()
	}
}

// bootLocked lets the guest of an instance that runs boot. What ran in it before has ended by the time the new guest starts.
func (r *Rack) bootLocked(i *instance) {
	i.boots++
	i.guest.stop()
	i.console, i.consoleStart = nil, 0

	boot, ok := r.bootDiskLocked(i)
	if r.opts.Boot == nil || r.closed || !ok || len(boot.content.blocks) == 0 {
		return
	}

	ctx, cancel := context.WithCancel(r.ctx)
	before, now := i.guest, &guest{cancel: cancel, done: make(chan struct{})}
	i.guest = now
	g := r.guestLocked(i, boot, now)

	r.tasks.Go(func() {
		defer close(now.done)
		defer cancel()

		if before != nil {
			<-before.done
		}

		if ctx.Err() == nil {
			r.opts.Boot(ctx, g)
		}

		if ctx.Err() != nil {
			return
		}

		r.mu.Lock()
		defer r.mu.Unlock()

		// It has shut itself down.
		if i.guest == now && i.state == api.InstanceStateRunning && !r.closed {
			r.stopLocked(i)
		}
	})
}

// bootDiskLocked is the disk that the firmware boots from: the one that was chosen, else the only one.
func (r *Rack) bootDiskLocked(i *instance) (*disk, bool) {
	if i.boot != "" {
		return r.disks.byID(i.boot)
	}

	for _, d := range r.disksOf(i.id) {
		if len(d.content.blocks) > 0 {
			return d, true
		}
	}

	return nil, false
}

func (r *Rack) guestLocked(i *instance, boot *disk, run *guest) Guest {
	g := Guest{
		ID: i.id, Name: i.name, UUID: r.smbios(i.id), Hostname: i.hostname, Seed: r.seedLocked(i), Image: boot.image,
		CPUs: i.cpus, Memory: i.memory, Boot: boot.content.exported(), rack: r, instance: i, run: run,
	}

	if image, ok := r.images.byID(boot.image); ok {
		g.ImageText, g.ImageVersion = image.name+" "+image.description, image.version
	}

	for _, n := range r.nicsLocked(i.id) {
		g.MACs = append(g.MACs, n.mac)
	}

	return g
}

// seedLocked has the files of the volume that the control plane gives an instance, for cloud-init's NoCloud source.
func (r *Rack) seedLocked(i *instance) map[string][]byte {
	meta := struct {
		ID       string   `json:"instance-id"`
		Hostname string   `json:"local-hostname"`
		Keys     []string `json:"public-keys"`
	}{i.id, i.hostname, []string{}}

	for _, id := range i.keys {
		if k, ok := r.sshKeys.byID(id); ok {
			meta.Keys = append(meta.Keys, k.public)
		}
	}

	text, err := json.Marshal(meta)
	if err != nil {
		panic(err)
	}

	files := map[string][]byte{"meta-data": text}
	if len(i.userData) > 0 {
		files["user-data"] = slices.Clone(i.userData)
	}

	return files
}

// smbios is how the guest of an instance sees its id.
func (r *Rack) smbios(id string) string {
	if r.opts.SMBIOS == InstanceID {
		return id
	}

	u := uuid.MustParse(id)
	slices.Reverse(u[0:4])
	slices.Reverse(u[4:6])
	slices.Reverse(u[6:8])

	return u.String()
}
