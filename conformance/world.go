package conformance

import (
	"context"
	"io/fs"
	"net/url"
	"regexp"
	"sync"

	"google.golang.org/grpc"

	"github.com/omni-infra/omni-infra-providers/sim/omni"
	"github.com/omni-infra/omni-infra-providers/sim/talos"
	"github.com/omni-infra/omni-infra-providers/sim/talos/meta"
)

// World is what a subject's cloud needs of its surroundings: a life for its machines.
type World struct {
	omni *omni.Omni
	// others are other Omnis, by the machine API that their machines are told.
	others map[string]*omni.Omni
	// exposed is told of secrets as they come up.
	exposed func(name, value string)
	// pace has the machines' own.
	pace pace

	mu    sync.Mutex
	metas map[string]talos.Meta
	// held is not nil while machines are kept from booting.
	held chan struct{}
}

// Guest is a machine as its firmware sees it.
type Guest struct {
	// UUID is the SMBIOS UUID.
	UUID string
	// UserData is what the cloud hands over, empty if nothing. KernelArgs is the command line that the cloud sets.
	UserData   string
	KernelArgs string
	// Volume opens the file system labelled cidata that UserData is from, as a talos.Machine takes it, so that what else is in it counts
	// as well; nil if the cloud hands UserData over in another way.
	Volume func() (fs.FS, error)
	// TalosVersion has the form "v1.13.5", empty for any.
	TalosVersion string
	// hostname tells two machines of one UUID apart.
	hostname string
}

// Boot runs a simulated Talos machine from power on until it switches itself off or ctx ends. Clouds call it in a goroutine
// each time that a machine is switched on; a machine with the same UUID keeps its disk.
func (w *World) Boot(ctx context.Context, g Guest) {
	w.mu.Lock()
	held := w.held

	if w.metas[g.UUID] == nil {
		w.metas[g.UUID] = &meta.Memory{}
	}

	disk := w.metas[g.UUID]
	w.mu.Unlock()

	if held != nil {
		select {
		case <-held:
		case <-ctx.Done():
			return
		}
	}

	w.run(ctx, g, disk)
}

// run runs a machine with that disk.
func (w *World) run(ctx context.Context, g Guest, disk talos.Meta) {
	w.watchTokens(g)

	machine := &talos.Machine{
		UUID: g.UUID, UserData: []byte(g.UserData), Cmdline: talos.Cmdline(g.KernelArgs), Meta: disk, TalosVersion: g.TalosVersion, Hostname: g.hostname,
		BootTime: w.pace.boot, ShutdownTime: w.pace.shutdown,
		Dial: func(_ context.Context, target string, _ []string) (*grpc.ClientConn, error) {
			return w.at(target).DialMachineAPI()
		},
	}

	if g.Volume != nil {
		machine.UserData, machine.Volume = nil, g.Volume
	}

	// Whatever keeps a machine from joining is seen in Omni, by its absence.
	_ = machine.Run(ctx)
}

// settle adds an Omni whose machines join at a machine API of its own.
func (w *World) settle(machineAPI string, o *omni.Omni) {
	w.mu.Lock()
	defer w.mu.Unlock()

	if w.others == nil {
		w.others = map[string]*omni.Omni{}
	}

	w.others[machineAPI] = o
}

// at returns the Omni that machines are told to join there.
func (w *World) at(machineAPI string) *omni.Omni {
	w.mu.Lock()
	defer w.mu.Unlock()

	if o, ok := w.others[machineAPI]; ok {
		return o
	}

	return w.omni
}

// hold keeps machines that are switched on from booting until release is called.
func (w *World) hold() (release func()) {
	held := make(chan struct{})

	w.mu.Lock()
	defer w.mu.Unlock()

	w.held = held

	return func() {
		w.mu.Lock()
		defer w.mu.Unlock()

		w.held = nil
		close(held)
	}
}

var joinToken = regexp.MustCompile(`jointoken=([^&\s"']+)`)

// watchTokens makes the suite look for the machine's join token wherever text passes.
func (w *World) watchTokens(g Guest) {
	for _, text := range []string{g.UserData, g.KernelArgs} {
		for _, m := range joinToken.FindAllStringSubmatch(text, -1) {
			w.exposed("join token", m[1])

			if plain, err := url.QueryUnescape(m[1]); err == nil && plain != m[1] {
				w.exposed("join token", plain)
			}
		}
	}
}
