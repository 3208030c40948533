package lifecycle

import (
	"context"
	"errors"
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

	if err := p.learnPlace(ctx, id); err != nil {
		return err
	}

	if err := p.showAddresses(ctx, id); err != nil {
		return err
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

	rec, ok := p.records.get(id)
	if ok && !rec.ours() {
		return nil
	}

	if machine, ok := p.looks.machine(id); ok {
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
	// powerBy and rebootBy say who decides, in words for an operator. They are empty when what an operator's command asks for is
	// done: once, unlike what the others say, which holds.
	powerBy, rebootBy string
}

// standing returns what is asked by those who come before an operator's command: the InfraMachine, else the annotations.
func standing(request *infra.MachineRequest, machine *infra.Machine) (wish, error) {
	if machine != nil {
		spec := machine.TypedSpec().Value
		by := fmt.Sprintf("the InfraMachine %q", machine.Metadata().ID())
		w := wish{rebootID: spec.RequestedRebootId, power: driver.PowerOff, powerBy: by, rebootBy: by}

		if spec.PreferredPowerState == specs.InfraMachineSpec_POWER_STATE_ON {
			w.power = driver.PowerOn
		}

		return w, nil
	}

	w := wish{rebootID: request.Metadata().Annotations().Raw()[RebootAnnotation]}
	if w.rebootID != "" {
		w.rebootBy = fmt.Sprintf("the annotation %s of the machine request", RebootAnnotation)
	}

	value := request.Metadata().Annotations().Raw()[PowerAnnotation]
	if value == "" {
		return w, nil
	}

	var err error
	if w.power, err = powerOf(value); err != nil {
		return w, driver.Terminalf("annotation %s is %w", PowerAnnotation, err)
	}

	w.powerBy = fmt.Sprintf("the annotation %s of the machine request", PowerAnnotation)

	return w, nil
}

func powerOf(text string) (driver.Power, error) {
	switch text {
	case driver.PowerOn.String():
		return driver.PowerOn, nil
	case driver.PowerOff.String():
		return driver.PowerOff, nil
	default:
		return driver.PowerUnknown, fmt.Errorf(`%q: want "on" or "off"`, text)
	}
}

// wishOf returns what is asked of the machine. What an operator's command asks for comes last, and is forgotten when somebody
// else decides: it would come true when nobody expects it any more.
func (p *Provider) wishOf(ctx context.Context, request *infra.MachineRequest, uuid string, rec *record) (wish, *record, error) {
	machine, _ := p.machines.get(uuid)

	w, err := standing(request, machine)
	if err != nil {
		return w, rec, err
	}

	if w.powerBy != "" && rec.spec.PowerWish != "" || w.rebootBy != "" && rec.spec.RebootWish != "" {
		if rec, err = ensure(ctx, p, p.records, rec, func(r *record) {
			if w.powerBy != "" {
				r.spec.PowerWish = ""
			}

			if w.rebootBy != "" {
				r.spec.RebootWish = ""
			}
		}); err != nil {
			return w, rec, err
		}
	}

	if rec.spec.PowerWish != "" {
		if w.power, err = powerOf(rec.spec.PowerWish); err != nil {
			return w, rec, driver.Terminalf("the power asked for is %w", err)
		}
	}

	if rec.spec.RebootWish != "" {
		w.rebootID = rec.spec.RebootWish
	}

	return w, rec, nil
}

// power brings a machine's switch to what is asked, reboots it when a new reboot id says so, and reports both.
func (p *Provider) power(ctx context.Context, request *infra.MachineRequest, uuid string) error {
	id := request.Metadata().ID()

	rec, _ := p.records.get(id)
	if rec == nil {
		rec = newRecord(p.cfg.ID, id)
	}

	want, rec, err := p.wishOf(ctx, request, uuid, rec)
	if err != nil {
		return p.powerFailed(ctx, request, err)
	}

	rebooting := want.rebootID != "" && (want.rebootID != rec.spec.RebootID || !rec.spec.RebootDone)

	if want.power == driver.PowerUnknown && !rebooting {
		return p.powerDone(ctx, request)
	}

	machine, err := p.find(ctx, id)
	if driver.IsNotFound(err) {
		// The observer finds out whether it is really gone.
		return nil
	}

	if err != nil {
		return p.powerFailed(ctx, request, fmt.Errorf("find machine: %w", err))
	}

	if machine, rec, err = p.carryOut(ctx, want, rebooting, rec, machine); err != nil {
		// What can never come true is not kept for a day when it might.
		if driver.KindOf(err) == driver.KindTerminal {
			if _, forgetErr := p.fulfil(ctx, rec, rec.spec.PowerWish, rec.spec.RebootWish); forgetErr != nil {
				return forgetErr
			}
		}

		return p.powerFailed(ctx, request, err)
	}

	p.looks.saw(id, machine)

	if err := p.report(ctx, id, uuid, machine, rec); err != nil {
		return err
	}

	if rec.spec.PowerWish == machine.Power.String() {
		if _, err := p.fulfil(ctx, rec, rec.spec.PowerWish, ""); err != nil {
			return err
		}
	}

	if err := p.powerDone(ctx, request); err != nil {
		return err
	}

	if rec.spec.PowerWish != "" && rec.spec.PowerWish != machine.Power.String() {
		return driver.Pending(pendingPause, "the machine of %q is switched %s", id, rec.spec.PowerWish)
	}

	return nil
}

// fulfil takes away what an operator's command asked for, unless another one has asked for something else meanwhile.
func (p *Provider) fulfil(ctx context.Context, rec *record, power, reboot string) (*record, error) {
	if power == "" && reboot == "" {
		return rec, nil
	}

	return ensure(ctx, p, p.records, rec, func(r *record) {
		if r.spec.PowerWish == power {
			r.spec.PowerWish = ""
		}

		if r.spec.RebootWish == reboot {
			r.spec.RebootWish = ""
		}
	})
}

// carryOut switches and reboots the machine, and returns what it is like after that.
func (p *Provider) carryOut(ctx context.Context, want wish, rebooting bool, rec *record, machine driver.Machine) (driver.Machine, *record, error) {
	id := rec.Metadata().ID()

	switcher, ok := p.cfg.Driver.(driver.PowerSwitch)
	if !ok {
		return machine, rec, driver.Terminalf("power and reboot of machines is not supported by this provider")
	}

	if want.power != driver.PowerUnknown && machine.Power != want.power {
		if err := p.switchPower(ctx, switcher, id, want.power); err != nil {
			return machine, rec, err
		}

		found, err := p.find(ctx, id)
		if err != nil {
			return machine, rec, fmt.Errorf("find machine: %w", err)
		}

		machine = found
	}

	if rebooting {
		var err error
		if rec, err = p.reboot(ctx, switcher, rec, want.rebootID, machine); err != nil {
			return machine, rec, err
		}
	}

	return machine, rec, nil
}

func (p *Provider) switchPower(ctx context.Context, switcher driver.PowerSwitch, id string, want driver.Power) error {
	p.log.Info("machine is switched", zap.String("request", id), zap.Stringer("power", want))

	err := alter(ctx, p, p.cfg.CallTimeout, "switching the machine "+want.String(), func(ctx context.Context) error {
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
		if rec, err = p.rebooted(ctx, rec); err != nil {
			return rec, err
		}

		return rec, driver.Terminalf("reboot %q: the machine is off; switch it on instead", rebootID)
	}

	if !happened {
		if err := alter(ctx, p, p.cfg.CallTimeout, "rebooting the machine", func(ctx context.Context) error {
			return switcher.Reboot(ctx, p.ref(rec.Metadata().ID()))
		}); err != nil {
			return rec, fmt.Errorf("reboot %q: %w", rebootID, err)
		}

		p.log.Info("machine was rebooted", zap.String("request", rec.Metadata().ID()), zap.String("reboot_id", rebootID))
	}

	return p.rebooted(ctx, rec)
}

// rebooted records that the reboot which was asked for is over.
func (p *Provider) rebooted(ctx context.Context, rec *record) (*record, error) {
	return ensure(ctx, p, p.records, rec, func(r *record) {
		r.spec.RebootDone = true

		if r.spec.RebootWish == r.spec.RebootID {
			r.spec.RebootWish = ""
		}
	})
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

// powerDone clears a power error in the request's status, or says there what of the operator's wishes means nothing.
func (p *Provider) powerDone(ctx context.Context, request *infra.MachineRequest) error {
	idle := idleWish(request)

	if err := p.powerFailed(ctx, request, idle); !errors.Is(err, idle) {
		return err
	}

	return nil
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
