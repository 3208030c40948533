package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// domain is what is known of a domain that carries our mark and the UUID that goes with it.
type domain struct {
	name, uuid string
	mark       machine.Mark
	condition
	// id numbers the starts; 0 while the domain is off.
	id uint
	// host is the hypervisor's own name for itself.
	host string
}

func (o *domain) active() bool { return o.id != 0 }

// rebootLimit is how long a machine that is off counts as one that reboots: the mark may be left of a reboot that is over.
const rebootLimit = time.Hour

// rebooting says whether the domain is off only until somebody starts it again.
func (o *domain) rebooting() bool {
	since := o.mark.RebootingSince()

	return !o.active() && !since.IsZero() && time.Since(since) < rebootLimit
}

// claims says whether the volumes in the pool that have names of the machine are its own.
func (o *domain) claims(pool string) bool { return slices.Contains(o.mark.Pools(), pool) }

// machine is what the library gets to see of a domain.
func (h *Host) machine(o *domain) driver.Machine {
	m := driver.Machine{
		Ref:       o.mark.Ref(),
		Place:     h.config.Name,
		ID:        o.name,
		UUID:      o.uuid,
		Power:     o.power(),
		State:     o.condition.String(),
		Labels:    h.labels(o.labels()),
		CreatedAt: o.mark.Created,
		// Until its disks are made, the domain only claims their names.
		Incomplete: o.mark.Making,
	}

	if o.rebooting() {
		m.Power, m.State = driver.PowerOn, "rebooting"
	}

	if o.active() {
		m.Boot = strings.TrimSuffix(strconv.FormatUint(uint64(o.id), 10)+"-"+o.mark.Boot, "-")
	}

	return m
}

// labels are those of the machine's class, where it is and how it fares.
func (o *domain) labels() map[string]string {
	labels := map[string]string{}

	for _, label := range o.mark.Labels {
		labels[label.Name] = label.Value
	}

	labels["host"], labels["pool"], labels["state"] = o.host, o.mark.Pool, o.condition.String()

	return labels
}

// labels adds the host's labels to those of a machine.
func (h *Host) labels(of map[string]string) map[string]string {
	all := maps.Clone(h.config.Labels)
	if all == nil {
		return of
	}

	maps.Copy(all, of)

	return all
}

// readDomain returns nil for a domain that is not ours, or that went while it was looked at.
func readDomain(dom connection.Domain, host string) (*domain, error) {
	element, err := dom.GetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, machine.MarkNamespace, libvirt.DOMAIN_AFFECT_CURRENT)
	if connection.Is(err, libvirt.ERR_NO_DOMAIN_METADATA, libvirt.ERR_NO_DOMAIN) {
		return nil, nil
	}

	if err != nil {
		return nil, err
	}

	o := &domain{host: host}

	if o.uuid, err = dom.GetUUIDString(); err != nil {
		return nil, err
	}

	if o.uuid, err = driver.CanonicalUUID(o.uuid); err != nil {
		return nil, nil //nolint:nilerr // No machine of ours has a placeholder for its UUID.
	}

	// A mark that cannot be read, or that has been copied to another domain, is not ours.
	if o.mark, err = machine.ParseMark(element); err != nil || !o.mark.Owns(o.uuid) {
		return nil, nil //nolint:nilerr // See above.
	}

	if o.name, err = dom.GetName(); err != nil {
		return nil, err
	}

	o.state, o.reason, err = dom.GetState()
	if connection.Is(err, libvirt.ERR_NO_DOMAIN) {
		return nil, nil
	}

	if err != nil {
		return nil, err
	}

	// A domain that is off has no id, which libvirt calls an error.
	if id, err := dom.GetID(); err == nil {
		o.id = id
	}

	return o, nil
}

// hostname is the hypervisor's own name for itself, asked for once for each connection.
func (h *Host) hostname(c connection.Connect) (string, error) {
	if known := h.called.Load(); known != nil {
		return *known, nil
	}

	name, err := c.GetHostname()
	if err == nil {
		h.called.Store(&name)
	}

	return name, err
}

// domain looks for the domain of a request; NotFound says that there is none of ours.
func (h *Host) domain(ctx context.Context, ref driver.Ref) (*domain, error) {
	found, err := domainCall(ctx, h, ref, "look up", func(c connection.Connect, dom connection.Domain) (*domain, error) {
		host, err := h.hostname(c)
		if err != nil {
			return nil, err
		}

		return readDomain(dom, host)
	})
	if err != nil {
		return nil, err
	}

	if found == nil || found.mark.Ref() != ref {
		return nil, driver.NotFound("libvirt has no domain for request %q", ref.RequestID)
	}

	return found, nil
}

// domainByUUID returns nil when the domain is not ours or has gone.
func (h *Host) domainByUUID(ctx context.Context, uuid string) (*domain, error) {
	return connection.Call(ctx, h.conn, fmt.Sprintf("look up domain with UUID %s", uuid), func(c connection.Connect) (*domain, error) {
		dom, err := c.LookupDomainByUUIDString(uuid)
		if connection.Is(err, libvirt.ERR_NO_DOMAIN) {
			return nil, nil
		}

		if err != nil {
			return nil, err
		}

		defer func() { _ = dom.Free() }()

		return readDomain(dom, "")
	})
}

// domainCall makes a call on the request's domain, as lookUp finds it.
func domainCall[T any](ctx context.Context, h *Host, ref driver.Ref, verb string, f func(connection.Connect, connection.Domain) (T, error)) (T, error) {
	what := fmt.Sprintf("%s domain %q", verb, machine.NamesOf(ref).Domain)

	return connection.Call(ctx, h.conn, what, func(c connection.Connect) (T, error) {
		dom, err := lookUp(c, ref)
		if err != nil {
			var zero T

			return zero, err
		}

		defer func() { _ = dom.Free() }()

		return f(c, dom)
	})
}

// change makes a call that changes the request's domain.
func (h *Host) change(ctx context.Context, ref driver.Ref, verb string, f func(connection.Domain) error) error {
	_, err := domainCall(ctx, h, ref, verb, func(_ connection.Connect, dom connection.Domain) (struct{}, error) {
		return struct{}{}, f(dom)
	})

	return err
}

// domains returns all domains of a provider.
func (h *Host) domains(ctx context.Context, provider string) ([]*domain, error) {
	return connection.Call(ctx, h.conn, "list domains", func(c connection.Connect) ([]*domain, error) {
		host, err := h.hostname(c)
		if err != nil {
			return nil, err
		}

		all, err := c.ListAllDomains(0)
		if err != nil {
			return nil, err
		}

		var (
			own  []*domain
			errs []error
		)

		for i := range all {
			one, err := readDomain(all[i], host)
			_ = all[i].Free()

			if err != nil {
				errs = append(errs, err)
			} else if one != nil && one.mark.Provider == provider {
				own = append(own, one)
			}
		}

		if len(errs) > 0 {
			return nil, errors.Join(errs...)
		}

		return own, nil
	})
}

// checkDomainIsFree refuses to go on while a domain that is not ours has the machine's name or UUID: libvirt would overwrite it.
func (h *Host) checkDomainIsFree(ctx context.Context, ref driver.Ref) error {
	name, uuid := machine.NamesOf(ref).Domain, driver.NewIdentity(ref).UUID

	taken, err := connection.Call(ctx, h.conn, fmt.Sprintf("look up domain %q", name), func(c connection.Connect) (string, error) {
		for _, lookup := range []func() (connection.Domain, error){
			func() (connection.Domain, error) { return c.LookupDomainByName(name) },
			func() (connection.Domain, error) { return c.LookupDomainByUUIDString(uuid) },
		} {
			dom, err := lookup()
			if connection.Is(err, libvirt.ERR_NO_DOMAIN) {
				continue
			}

			if err != nil {
				return "", err
			}

			own, err := readDomain(dom, "")
			found, nameErr := dom.GetName()
			_ = dom.Free()

			if err := errors.Join(err, nameErr); err != nil {
				return "", err
			}

			if own == nil || own.mark.Ref() != ref {
				return found, nil
			}
		}

		return "", nil
	})
	if err != nil || taken == "" {
		return err
	}

	return fmt.Errorf("domain %q is in the way: it has the name or UUID (%s) of this machine but was not made by this provider, "+
		"which leaves it alone; rename or remove it", taken, uuid)
}

// domainWithAddress returns the name of a domain, other than the one with that UUID, that has an interface with the hardware
// address; empty if there is none.
func (h *Host) domainWithAddress(ctx context.Context, address, except string) (string, error) {
	return connection.Call(ctx, h.conn, "look for hardware address "+address, func(c connection.Connect) (string, error) {
		all, err := c.ListAllDomains(0)
		if err != nil {
			return "", err
		}

		found := ""

		for i := range all {
			uuid, uuidErr := all[i].GetUUIDString()
			name, nameErr := all[i].GetName()
			desc, descErr := all[i].GetXMLDesc(0)
			_ = all[i].Free()

			if err := errors.Join(uuidErr, nameErr, descErr); err != nil {
				if connection.Is(descErr, libvirt.ERR_NO_DOMAIN) {
					continue
				}

				return "", err
			}

			macs, err := machine.DomainMACs(desc)
			if err != nil {
				return "", fmt.Errorf("domain %q: %w", name, err)
			}

			if !strings.EqualFold(uuid, except) && slices.Contains(macs, address) {
				found = name
			}
		}

		return found, nil
	})
}
