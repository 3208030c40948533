package talos

import (
	"context"
	"crypto/ecdh"
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"log/slog"
	"time"

	"github.com/google/uuid"

	"github.com/omni-infra/omni-infra-providers/sim/talosapi"
)

// boot is one boot of a machine.
type boot struct {
	machine   *Machine
	hardware  uuid.UUID
	id        string
	publicKey string
	hostname  string
	log       *slog.Logger
}

func newBoot(machine *Machine, hardware uuid.UUID) (*boot, error) {
	// A WireGuard key is an X25519 key. Talos makes a new one at each boot as well.
	key, err := ecdh.X25519().GenerateKey(rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate WireGuard key: %w", err)
	}

	b := &boot{
		machine:   machine,
		hardware:  hardware,
		id:        uuid.NewString(),
		publicKey: base64.StdEncoding.EncodeToString(key.PublicKey().Bytes()),
		hostname:  machine.Hostname,
	}
	b.log = machine.Log.With("uuid", b.uuid(), "boot", b.id)

	return b, nil
}

// run goes from power on to power off.
func (b *boot) run(ctx context.Context) (End, error) {
	// Orders end what the machine is doing, but not its connection, over which it still takes its leave.
	doing, stop := context.WithCancelCause(ctx)
	defer stop(nil)

	listening := make(chan struct{})

	go func() {
		defer close(listening)

		select {
		case o := <-b.machine.orders:
			stop(o)
		case <-doing.Done():
		}
	}()

	err := b.join(ctx, doing)

	stop(nil)
	<-listening

	if ctx.Err() != nil {
		return "", ctx.Err()
	}

	o, ok := ordered(err)
	if !ok {
		return "", err
	}

	if o.wipe {
		if err = b.machine.Meta.Wipe(); err != nil {
			return "", fmt.Errorf("reset machine %s: %w", b.hardware, err)
		}
	}

	b.log.Info("off", "next", string(o.end))

	return o.end, nil
}

// join never returns nil: it goes on until the machine is ordered to leave or loses power.
func (b *boot) join(ctx, doing context.Context) error {
	if err := sleep(doing, b.machine.BootTime); err != nil {
		return b.depart(ctx, err)
	}

	config, err := b.configure(doing)
	if err != nil {
		return b.depart(ctx, err)
	}

	if config.Target == "" {
		b.log.Info("no join config, waiting in maintenance")
		b.machine.update(func(s *Status) { s.Stage = talosapi.StageMaintenance })
		<-doing.Done()

		return b.depart(ctx, context.Cause(doing))
	}

	b.log.Info("join config found", "source", config.Source, "target", config.Target)

	for pause := newPause(); ; {
		began := time.Now()

		again, err := b.connect(ctx, doing, config)

		switch {
		case again == departed:
			return err
		case doing.Err() != nil:
			return b.depart(ctx, context.Cause(doing))
		case again == atOnce:
			continue
		case time.Since(began) > lastPause: // The tunnel was up for a good while.
			pause = newPause()
		}

		b.machine.fail(err)
		b.log.Warn("not joined", "error", err)

		if err = pause.wait(doing); err != nil {
			return b.depart(ctx, err)
		}
	}
}

// configure looks for the join config until it finds one that can be used, or that there is none.
func (b *boot) configure(doing context.Context) (JoinConfig, error) {
	for pause := newPause(); ; {
		config, err := b.machine.FindJoinConfig(doing)
		if config.Hostname != "" {
			b.hostname = config.Hostname
		}

		if doing.Err() != nil {
			return config, context.Cause(doing)
		}

		b.machine.fail(err)

		if err == nil || config.Target != "" {
			return config, nil
		}

		b.log.Warn("cannot read config", "error", err)

		if err = pause.wait(doing); err != nil {
			return config, err
		}
	}
}

// depart spends the time that a shutdown or a reset takes, unless power is cut. It returns err, the reason.
func (b *boot) depart(ctx context.Context, err error) error {
	o, ok := ordered(err)
	if !ok {
		return err
	}

	b.log.Info("leaving", "stage", string(o.stage))
	b.machine.update(func(s *Status) { s.Stage = o.stage })

	takes := b.machine.ShutdownTime
	if o.wipe {
		takes += b.machine.ResetTime
	}

	if cut := sleep(ctx, takes); cut != nil {
		return cut
	}

	return err
}

func (b *boot) report(stage talosapi.Stage) talosapi.Report {
	return talosapi.Report{
		UUID:         b.uuid(),
		Stage:        stage,
		BootID:       b.id,
		TalosVersion: b.machine.TalosVersion,
		Schematic:    b.machine.Schematic,
		Hostname:     b.hostname,
		Arch:         b.machine.Arch,
		CPUs:         b.machine.CPUs,
		MemoryMiB:    b.machine.MemoryMiB,
		Disks:        b.machine.Disks,
	}
}
