package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/siderolabs/omni/client/pkg/client"

	"github.com/omni-infra/omni-infra-providers/tools/story"
)

const (
	providerID = "libvirt"
	setID      = "lab"
	pool       = "/var/lib/libvirt/images"
	api        = "127.0.0.1:8099"
	machineAPI = gateway + ":8090"
	factory    = "127.0.0.1:8085"
	// startTime is how long the programs may take until they are up.
	startTime = 2 * time.Minute
)

// lab is the inside of the lab: it shares the namespaces of the private libvirtd.
type lab struct {
	config
	dir     layout
	virsh   virsh
	running []*process
}

func (l *lab) tell(ctx context.Context) error {
	if err := l.virsh.setUp(ctx, pool); err != nil {
		return err
	}

	before, err := l.virsh.witness(ctx, setID+"-")
	if err != nil {
		return err
	}

	admin, err := l.startPrograms(ctx)
	if err != nil {
		return err
	}

	omni, err := client.New("http://"+api, client.WithServiceAccount(admin["OMNI_SERVICE_ACCOUNT_KEY"]))
	if err != nil {
		return err
	}
	defer omni.Close()

	screen := story.NewScreen(os.Stdout, l.plain)
	cfg := story.Config{
		Omni: omni.Omni().State(), Cloud: l.virsh, Provider: providerID, Set: setID, Machines: l.machines,
		ClassData: fmt.Sprintf("{cores: 1, memory: 256, disk_size: 1, storage_pool: %s, firmware: %s}", poolName, l.firmware),
		Patience:  l.patience, Screen: screen,
	}

	if l.keep {
		cfg.Pause = func(ctx context.Context) error { return l.pause(ctx, screen) }
	}

	if err := story.Tell(ctx, cfg); err != nil {
		return err
	}

	// A provider that is asked to end does so in order; what it has left then is left for good.
	if err := l.stopAll(); err != nil {
		return err
	}

	facts, left, err := l.compare(ctx, before)
	if err != nil {
		return err
	}

	screen.Summary(facts...)

	if len(left) > 0 {
		return fmt.Errorf("left behind: %s", strings.Join(left, "; "))
	}

	return nil
}

// startPrograms starts the image factory, Omni and the provider, and returns the administrator's environment.
func (l *lab) startPrograms(ctx context.Context) (map[string]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, startTime, fmt.Errorf("nothing for %s", startTime))
	defer cancel()

	images, err := l.start("image-factory-sim", nil, "--listen", factory, "--cache-dir", imageCache(), "--init", l.dir.bin("talos-init"))
	if err != nil {
		return nil, err
	}

	if err := images.awaitLog(ctx, "serving"); err != nil {
		return nil, err
	}

	omni, err := l.start("omni-sim", nil, "--listen", api, "--machine-listen", machineAPI, "--factory", "http://"+factory,
		"--state-dir", l.dir.path("omni"), "--provider", providerID, "--peer-poll", "1s", "--peer-down", "2s")
	if err != nil {
		return nil, err
	}

	if err := omni.awaitLog(ctx, "machines join at"); err != nil {
		return nil, err
	}

	env, err := readEnv(l.dir.path("omni", "provider-"+providerID+".env"))
	if err != nil {
		return nil, err
	}

	var given []string
	for name, value := range env {
		given = append(given, name+"="+value)
	}

	provider, err := l.start("omni-infra-provider-libvirt", given)
	if err != nil {
		return nil, err
	}

	if err := provider.awaitLog(ctx, "provider is running"); err != nil {
		return nil, err
	}

	return readEnv(l.dir.path("omni", "admin.env"))
}

// readEnv reads a file of export lines.
func readEnv(name string) (map[string]string, error) {
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}

	env := map[string]string{}

	for line := range strings.Lines(string(data)) {
		if assignment, ok := strings.CutPrefix(strings.TrimSpace(line), "export "); ok {
			name, value, _ := strings.Cut(assignment, "=")
			env[name] = value
		}
	}

	return env, nil
}

// compare says what the witness finds now, and what of it was not there before.
func (l *lab) compare(ctx context.Context, before []finding) (facts, left []string, err error) {
	after, err := l.virsh.witness(ctx, setID+"-")
	if err != nil {
		return nil, nil, err
	}

	for i, f := range after {
		found := "nothing"
		if len(f.what) > 0 {
			found = strings.Join(f.what, " ")
		}

		ours := slices.DeleteFunc(f.what, func(name string) bool { return slices.Contains(before[i].what, name) })
		for _, name := range ours {
			left = append(left, f.how+": "+name)
		}

		if found != "nothing" && len(ours) == 0 {
			found += "   (was there before)"
		}

		facts = append(facts, fmt.Sprintf("%-62s %s", f.how, found))
	}

	temporary, err := os.ReadDir(l.dir.path("tmp"))
	for _, entry := range temporary {
		left = append(left, "temporary file "+entry.Name())
	}

	return facts, left, err
}

// pause leaves the lab open until Ctrl-C.
func (l *lab) pause(ctx context.Context, screen *story.Screen) error {
	pid, err := os.ReadFile(l.dir.path("pid"))
	if err != nil {
		return err
	}

	root, err := os.Getwd()
	if err != nil {
		return err
	}

	screen.Note(`
The lab is open, until Ctrl-C. In another shell, as root:

  virsh -c 'qemu+unix:///system?socket=%[1]s/run/libvirt-sock' list --all
  nsenter --target $(pgrep -P %[2]s) --net --mount --pid --wd=%[7]s   # a shell beside libvirtd, Omni (http://%[3]s) and the factory (http://%[4]s)
  . %[5]s   # in that shell; then omnictl works: go run ./tools/cmd/omnictl get machinerequests
  tail -f %[6]s

`, l.dir.libvirt(), pid, api, factory, l.dir.path("omni", "admin.env"), l.dir.log("*"), root)

	interrupt := make(chan os.Signal, 1)
	signal.Notify(interrupt, os.Interrupt)

	defer signal.Stop(interrupt)

	select {
	case <-interrupt:
		return nil
	case <-ctx.Done():
		return errors.Join(errors.New("the lab was left open"), ctx.Err())
	}
}
