package lifecycle

import (
	"context"
	"fmt"

	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"go.uber.org/zap"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// Operators set these annotations on a MachineRequest; an InfraMachine, where Omni makes one, comes before them.
const (
	// PowerAnnotation switches the machine: "on" or "off". Without it the machine is left as it is.
	PowerAnnotation = "omni-infra.dev/power"
	// RebootAnnotation reboots the machine once for each new value.
	RebootAnnotation = "omni-infra.dev/reboot-id"
)

// provisioned looks after a request whose machine is made.
func (p *Provider) provisioned(ctx context.Context, request *infra.MachineRequest, status *infra.MachineRequestStatus) error {
	id := request.Metadata().ID()
	joined := p.joined(id)

	if p.looks.isVanished(id) {
		return p.vanished(ctx, request, status)
	}

	if err := p.watchLone(ctx, request, joined); err != nil {
		return err
	}

	// A machine that has not joined is never switched: Omni has yet to collect its facts.
	if len(joined) != 1 {
		return nil
	}

	uuid := joined[0].Metadata().ID()

	// The request id in the join token is what makes the match, so the UUID it joined with is right, also after a conflict.
	if _, err := ensure(ctx, p, p.statuses, status, func(s *infra.MachineRequestStatus) { s.TypedSpec().Value.Id = uuid }); err != nil {
		return err
	}

	if machine, ok := p.looks.machine(id); ok {
		rec, _ := p.records.get(id)
		if err := p.report(ctx, id, uuid, machine, rec); err != nil {
			return err
		}
	}

	return p.power(ctx, request, uuid)
}

// wish is what is asked of a machine's switch.
type wish struct {
	power    driver.Power
	rebootID string
}

func (p *Provider) wishOf(request *infra.MachineRequest, uuid string) (wish, error) {
	if machine, ok := p.machines.get(uuid); ok {
		spec := machine.TypedSpec().Value
		w := wish{rebootID: spec.RequestedRebootId, power: driver.PowerOff}

		if spec.PreferredPowerState == specs.InfraMachineSpec_POWER_STATE_ON {
			w.power = driver.PowerOn
		}

		return w, nil
	}

	w := wish{rebootID: request.Metadata().Annotations().Raw()[RebootAnnotation]}

	switch value := request.Metadata().Annotations().Raw()[PowerAnnotation]; value {
	case "":
	case "on":
		w.power = driver.PowerOn
	case "off":
		w.power = driver.PowerOff
	default:
		return w, driver.Terminalf("annotation %s is %q: want \"on\" or \"off\"", PowerAnnotation, value)
	}

	return w, nil
}

// power brings a machine's switch to what is asked, reboots it when a new reboot id says so, and reports both.
func (p *Provider) power(ctx context.Context, request *infra.MachineRequest, uuid string) error {
	id := request.Metadata().ID()

	want, err := p.wishOf(request, uuid)
	if err != nil {
		return p.powerFailed(ctx, request, err)
	}

	rec, _ := p.records.get(id)
	if rec == nil {
		rec = newRecord(p.cfg.ID, id)
	}

	rebooting := want.rebootID != "" && (want.rebootID != rec.spec.RebootID || !rec.spec.RebootDone)

	if want.power == driver.PowerUnknown && !rebooting {
		return p.powerFailed(ctx, request, nil)
	}

	machine, err := p.find(ctx, id)
	if driver.IsNotFound(err) {
		// The observer finds out whether it is really gone.
		return nil
	}

	if err != nil {
		return p.powerFailed(ctx, request, fmt.Errorf("find machine: %w", err))
	}

	switcher, ok := p.cfg.Driver.(driver.PowerSwitch)
	if !ok {
		return p.powerFailed(ctx, request, driver.Terminalf("power and reboot of machines is not supported by this provider"))
	}

	if want.power != driver.PowerUnknown && machine.Power != want.power {
		if err := p.switchPower(ctx, switcher, id, want.power); err != nil {
			return p.powerFailed(ctx, request, err)
		}

		if machine, err = p.find(ctx, id); err != nil {
			return p.powerFailed(ctx, request, fmt.Errorf("find machine: %w", err))
		}
	}

	if rebooting {
		if rec, err = p.reboot(ctx, switcher, rec, want.rebootID, machine); err != nil {
			return p.powerFailed(ctx, request, err)
		}
	}

	p.looks.saw(id, machine)

	if err := p.report(ctx, id, uuid, machine, rec); err != nil {
		return err
	}

	return p.powerFailed(ctx, request, nil)
}

func (p *Provider) switchPower(ctx context.Context, switcher driver.PowerSwitch, id string, want driver.Power) error {
	p.log.Info("machine is switched", zap.String("request", id), zap.Stringer("power", want))

	err := do(ctx, p, p.cfg.CallTimeout, "switching the machine "+want.String(), func(ctx context.Context) error {
		return switcher.SetPower(ctx, p.ref(id), want)
	})

	return wrap(err, "switch the machine %s", want)
}

// reboot restarts the machine once for an id. The wish and the machine's boot are recorded first, so that after a crash in
// between, the cloud's answer tells whether the reboot has happened. A cloud that cannot tell gets it again: a machine that
// reboots twice is better than one that does not reboot and says that it did.
func (p *Provider) reboot(ctx context.Context, switcher driver.PowerSwitch, rec *record, rebootID string, machine driver.Machine) (*record, error) {
	rec, err := ensure(ctx, p, p.records, rec, func(r *record) {
		if r.spec.RebootID != rebootID {
			r.spec.RebootID, r.spec.RebootFrom, r.spec.RebootDone = rebootID, machine.Boot, false
		}
	})
	if err != nil {
		return rec, err
	}

	happened := machine.Boot != "" && machine.Boot != rec.spec.RebootFrom

	if !happened && machine.Power == driver.PowerOff {
		// The wish is answered, or the machine would be rebooted as soon as somebody switches it on.
		if rec, err = ensure(ctx, p, p.records, rec, func(r *record) { r.spec.RebootDone = true }); err != nil {
			return rec, err
		}

		return rec, driver.Terminalf("reboot %q: the machine is off; switch it on instead", rebootID)
	}

	if !happened {
		if err := do(ctx, p, p.cfg.CallTimeout, "rebooting the machine", func(ctx context.Context) error {
			return switcher.Reboot(ctx, p.ref(rec.Metadata().ID()))
		}); err != nil {
			return rec, fmt.Errorf("reboot %q: %w", rebootID, err)
		}

		p.log.Info("machine was rebooted", zap.String("request", rec.Metadata().ID()), zap.String("reboot_id", rebootID))
	}

	return ensure(ctx, p, p.records, rec, func(r *record) { r.spec.RebootDone = true })
}

// report writes what was observed of a joined machine. Only the turns of its request do so, or the report could outlive it.
func (p *Provider) report(ctx context.Context, id, uuid string, machine driver.Machine, rec *record) error {
	_, err := ensure(ctx, p, p.observed, infra.NewMachineStatus(uuid), func(s *infra.MachineStatus) {
		s.Metadata().Labels().Set(omni.LabelInfraProviderID, p.cfg.ID)
		s.Metadata().Annotations().Set(requestAnnotation, id)

		for key, value := range machine.Labels {
			s.Metadata().Labels().Set(key, value)
		}

		spec := s.TypedSpec().Value

		switch machine.Power {
		case driver.PowerOn:
			spec.PowerState = specs.InfraMachineStatusSpec_POWER_STATE_ON
		case driver.PowerOff:
			spec.PowerState = specs.InfraMachineStatusSpec_POWER_STATE_OFF
		case driver.PowerUnknown:
			spec.PowerState = specs.InfraMachineStatusSpec_POWER_STATE_UNKNOWN
		}

		if rec != nil && rec.spec.RebootDone && rec.spec.RebootID != spec.LastRebootId {
			spec.LastRebootId, spec.LastRebootTimestamp = rec.spec.RebootID, timestamppb.Now()
		}
	})

	return wrap(err, "write infra machine status %q", uuid)
}

// powerFailed shows a power error in the request's status, or clears it there.
func (p *Provider) powerFailed(ctx context.Context, request *infra.MachineRequest, err error) error {
	if ctx.Err() != nil {
		return err
	}

	if _, writeErr := ensure(ctx, p, p.statuses, infra.NewMachineRequestStatus(request.Metadata().ID()), func(s *infra.MachineRequestStatus) {
		switch {
		case err == nil:
			s.TypedSpec().Value.Error = ""
		case driver.KindOf(err) != driver.KindPending:
			s.TypedSpec().Value.Error = plain(err.Error())
		}
	}); writeErr != nil {
		return fmt.Errorf("show a power error in Omni: %w", writeErr)
	}

	return err
}
