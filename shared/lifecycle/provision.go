package lifecycle

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// running brings a request that Omni wants to its machine, and keeps watch over it afterwards.
func (p *Provider) running(ctx context.Context, request *infra.MachineRequest) error {
	id := request.Metadata().ID()

	request, err := p.addFinalizer(ctx, request)
	if err != nil {
		return err
	}

	status, ok := p.statuses.get(id)

	if rec, known := p.records.get(id); known {
		if err := rec.readable(); err != nil {
			if ok && isProvisioned(status) {
				return p.powerFailed(ctx, request, err)
			}

			return p.provisionFailed(ctx, request, "read the record", err)
		}
	}

	if ok && status.Metadata().Phase() == resource.PhaseTearingDown {
		return p.letGo(ctx, request, status)
	}

	if rec, ok := p.records.get(id); ok && rec.spec.Lost != "" {
		return p.lost(ctx, request, rec)
	}

	if err := p.adopt(ctx, request); err != nil {
		return err
	}

	if status, ok := p.statuses.get(id); ok && isProvisioned(status) {
		return p.provisioned(ctx, request, status)
	}

	return p.provision(ctx, request)
}

// provision runs all phases from the first. Phases ensure, so what a crash interrupted is found, not made again; no place in
// the list is stored, so a release that renames or adds a phase skips nothing.
func (p *Provider) provision(ctx context.Context, request *infra.MachineRequest) error {
	id := request.Metadata().ID()

	wish := requestOf(p.ref(id), request)

	var err error
	if wish.Place, err = p.place(ctx, request, wish); err != nil {
		return err
	}

	plan, err := ask(ctx, p, p.cfg.CallTimeout, "planning", func(ctx context.Context) (driver.Plan, error) { return p.cfg.Driver.Plan(ctx, wish) })
	if err != nil {
		return p.provisionFailed(ctx, request, "plan", err)
	}

	names := make([]string, len(plan.Phases))
	for i, phase := range plan.Phases {
		names[i] = phase.Name
	}

	rep := &reporter{p: p, request: request, phases: names, uuid: plan.UUID}

	if reached, ok := p.reached.LoadAndDelete(id); ok {
		rep.from, _ = reached.(int)
	}

	if err := rep.start(ctx); err != nil {
		return err
	}

	// Record, then act: from here on a crash leaves nothing that this provider cannot find again.
	if _, err := p.keep(ctx, id, func(r *recordSpec) {
		if r.UUID == "" && r.Names == nil {
			// A new machine has booted freshly: what was asked of another one is done.
			r.RebootID, r.RebootDone = request.Metadata().Annotations().Raw()[RebootAnnotation], true
			r.PowerWish, r.RebootWish = "", ""
		}

		r.UUID, r.Names = plan.UUID, plan.Names
	}); err != nil {
		return fmt.Errorf("record the plan of %q in Omni: %w", id, err)
	}

	if err := p.writePatches(ctx, id, plan.Patches); err != nil {
		return p.provisionFailed(ctx, request, "write config patches", err)
	}

	task := driver.Task{Request: wish, Progress: rep.progress}

	task.Join, err = call(ctx, p.cfg.CallTimeout, "reading the join settings from Omni", func(ctx context.Context) (driver.Join, error) {
		return p.join.join(ctx, request)
	})
	if err != nil {
		return p.provisionFailed(ctx, request, "make join configuration", err)
	}

	if plan.Image != nil {
		if p.cfg.Images == nil {
			return p.provisionFailed(ctx, request, "resolve image", driver.Terminalf("the driver asks for a boot image, and the provider has no source of images"))
		}

		task.Image, err = ask(ctx, p, p.cfg.CallTimeout, "resolving the boot image", func(ctx context.Context) (driver.Image, error) {
			return p.cfg.Images.Resolve(ctx, request, *plan.Image)
		})
		if err != nil {
			return p.provisionFailed(ctx, request, "resolve image", err)
		}
	}

	for i, phase := range plan.Phases {
		if p.unwanted(id) {
			return errChanged
		}

		started := time.Now()

		err := rep.during(ctx, i, func() error {
			return alter(ctx, p, p.cfg.PhaseTimeout, phase.Name, func(ctx context.Context) error { return phase.Ensure(ctx, task) })
		})

		p.cfg.Metrics.phase(phase.Name, time.Since(started))

		if driver.KindOf(err) == driver.KindPending {
			p.reached.Store(id, i)
		}

		if err != nil {
			return p.provisionFailed(ctx, request, fmt.Sprintf("%s (%d/%d)", phase.Name, i+1, len(plan.Phases)), err)
		}
	}

	return p.finish(ctx, request, plan)
}

// finish looks at what the phases made: a request is provisioned when its machine runs, under the UUID that Omni was told.
func (p *Provider) finish(ctx context.Context, request *infra.MachineRequest, plan driver.Plan) error {
	machine, err := p.find(ctx, request.Metadata().ID())
	if err != nil {
		return p.provisionFailed(ctx, request, "find machine", err)
	}

	uuid, err := machineUUID(plan.UUID, machine.UUID)
	if err != nil {
		return p.provisionFailed(ctx, request, "check machine", driver.Terminal(err))
	}

	if machine.Incomplete {
		return p.provisionFailed(ctx, request, "check machine", fmt.Errorf("the cloud holds only parts of machine %q (state %q)", machine.ID, machine.State))
	}

	if machine.Power == driver.PowerOff {
		return p.provisionFailed(ctx, request, "check machine", fmt.Errorf("machine %q is off after it was started (state %q)", machine.ID, machine.State))
	}

	if err := p.showProvisioned(ctx, request, machine, uuid); err != nil {
		return err
	}

	p.log.Info("machine provisioned", zap.String("request", request.Metadata().ID()), zap.String("machine", machine.ID), zap.String("uuid", uuid))

	return nil
}

// find asks the cloud for a request's machine. Where it is recorded to be decides: a place that cannot be seen says nothing of a
// machine at another one.
func (p *Provider) find(ctx context.Context, id string) (driver.Machine, error) {
	machine, err := ask(ctx, p, p.cfg.CallTimeout, "finding the machine", func(ctx context.Context) (driver.Machine, error) {
		return p.cfg.Driver.Find(ctx, p.ref(id))
	})

	if unseen := driver.UnseenOf(err); unseen != nil {
		if place := p.recordedPlace(id); place != "" && p.judges(unseen, id) {
			return machine, driver.NotFound("place %q does not have the machine of %q", place, id)
		}
	}

	return machine, err
}

// machineUUID compares what was planned with what the cloud made.
func machineUUID(planned, found string) (string, error) {
	if found == "" {
		return planned, nil
	}

	uuid, err := driver.CanonicalUUID(found)
	if err != nil {
		return "", err
	}

	if planned != "" && planned != uuid {
		return "", fmt.Errorf("the cloud gave the machine UUID %s, not %s as it was asked to; Omni would wait for a machine that never comes", uuid, planned)
	}

	return uuid, nil
}

// provisionFailed shows the error in the request's status, where it stays until the machine is provisioned.
func (p *Provider) provisionFailed(ctx context.Context, request *infra.MachineRequest, step string, err error) error {
	if ctx.Err() != nil {
		return err
	}

	id := request.Metadata().ID()
	kind := driver.KindOf(err)

	_, writeErr := ensure(ctx, p, p.statuses, infra.NewMachineRequestStatus(id), func(s *infra.MachineRequestStatus) {
		spec := s.TypedSpec().Value

		if spec.Stage == specs.MachineRequestStatusSpec_UNKNOWN {
			copyLabels(s, request)
		}

		spec.Stage = specs.MachineRequestStatusSpec_PROVISIONING

		if kind == driver.KindPending {
			spec.Status = plain(fmt.Sprintf("%s: %s", step, err))

			return
		}

		if kind == driver.KindTerminal {
			spec.Stage = specs.MachineRequestStatusSpec_FAILED
		}

		spec.Status = step
		spec.Error = plain(fmt.Sprintf("%s: %s", step, err))

		if failures := p.failures(id) + 1; failures > 1 {
			spec.Error += fmt.Sprintf(" (tried %d times)", failures)
		}
	})
	if writeErr != nil {
		return fmt.Errorf("show in Omni that %q failed (%w): %w", step, err, writeErr)
	}

	return err
}

// writePatches asks Omni for the machine's config patches. Their names carry the request's id, since Omni knows patches by
// name alone, whoever's they are.
func (p *Provider) writePatches(ctx context.Context, id string, patches map[string]string) error {
	for name, data := range patches {
		var encodeErr error

		if _, err := ensure(ctx, p, p.patches, infra.NewConfigPatchRequest(name+"-"+p.cfg.ID+"-"+id), func(r *infra.ConfigPatchRequest) {
			r.Metadata().Labels().Set(omni.LabelInfraProviderID, p.cfg.ID)
			r.Metadata().Labels().Set(omni.LabelMachineRequest, id)

			if current, err := r.TypedSpec().Value.GetUncompressedData(); err != nil || string(current.Data()) != data {
				encodeErr = r.TypedSpec().Value.SetUncompressedData([]byte(data))
			}
		}); err != nil || encodeErr != nil {
			return fmt.Errorf("write config patch %q: %w", name, cmp.Or(err, encodeErr))
		}
	}

	return nil
}

func requestOf(ref driver.Ref, request *infra.MachineRequest) driver.Request {
	spec := request.TypedSpec().Value
	set, _ := request.Metadata().Labels().Get(omni.LabelMachineRequestSet)

	return driver.Request{
		Ref:          ref,
		Identity:     driver.NewIdentity(ref),
		Set:          set,
		TalosVersion: "v" + strings.TrimPrefix(spec.TalosVersion, "v"),
		ClassData:    spec.ProviderData,
		Extensions:   spec.Extensions,
	}
}

// mostText bounds a text in a status.
const mostText = 4 << 10

// plain makes a foreign text fit for a status: an encoding that Omni refuses would hide the error for good, and it may repeat a
// join token.
func plain(text string) string {
	text = discreet(text)

	if len(text) > mostText {
		text = text[:mostText] + "…"
	}

	return strings.ToValidUTF8(text, "\uFFFD")
}

func copyLabels(to, from resource.Resource) {
	for key, value := range from.Metadata().Labels().Raw() {
		to.Metadata().Labels().Set(key, value)
	}
}
