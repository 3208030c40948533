package provider

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"libvirt.org/go/libvirt"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// domain is what is known of a domain that carries our mark and the UUID that goes with it.
type domain struct {
	name, uuid string
	mark       mark
	state      libvirt.DomainState
	// id numbers the starts; 0 while the domain is off.
	id uint
	// host is the hypervisor's own name for itself.
	host string
}

func (o *domain) active() bool { return o.id != 0 }

// machine is what the library gets to see.
func (o *domain) machine() driver.Machine {
	m := driver.Machine{
		Ref:       o.mark.ref(),
		ID:        o.name,
		UUID:      o.uuid,
		Power:     powerOf(o.state),
		State:     stateName(o.state),
		Labels:    map[string]string{"host": o.host, "pool": o.mark.Pool},
		CreatedAt: o.mark.Created,
	}

	if o.active() {
		m.Boot = strings.TrimSuffix(strconv.FormatUint(uint64(o.id), 10)+"-"+o.mark.Boot, "-")
	}

	return m
}

// readDomain returns nil for a domain that is not ours, or that went while it was looked at.
func readDomain(dom *libvirt.Domain, host string) (*domain, error) {
	element, err := dom.GetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, markNamespace, libvirt.DOMAIN_AFFECT_CURRENT)
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
	if o.mark, err = parseMark(element); err != nil || !o.mark.owns(o.uuid) {
		return nil, nil //nolint:nilerr // See above.
	}

	if o.name, err = dom.GetName(); err != nil {
		return nil, err
	}

	o.state, _, err = dom.GetState()
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

// domain looks for the domain of a request; NotFound says that there is none of ours.
func (d *Driver) domain(ctx context.Context, ref driver.Ref) (*domain, error) {
	found, err := domainCall(ctx, d, ref, "look up", func(c *libvirt.Connect, dom *libvirt.Domain) (*domain, error) {
		host, err := c.GetHostname()
		if err != nil {
			return nil, err
		}

		return readDomain(dom, host)
	})
	if err != nil {
		return nil, err
	}

	if found == nil || found.mark.ref() != ref {
		return nil, driver.NotFound("libvirt has no domain for request %q", ref.RequestID)
	}

	return found, nil
}

// domainByUUID returns nil when the domain is not ours or has gone.
func (d *Driver) domainByUUID(ctx context.Context, uuid string) (*domain, error) {
	return connection.Call(ctx, d.conn, fmt.Sprintf("look up domain with UUID %s", uuid), func(c *libvirt.Connect) (*domain, error) {
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

// domainCall makes a call on the domain with the request's UUID, whosever it is.
func domainCall[T any](ctx context.Context, d *Driver, ref driver.Ref, verb string, f func(*libvirt.Connect, *libvirt.Domain) (T, error)) (T, error) {
	what := fmt.Sprintf("%s domain %q", verb, namesOf(ref).Domain)

	return connection.Call(ctx, d.conn, what, func(c *libvirt.Connect) (T, error) {
		dom, err := c.LookupDomainByUUIDString(driver.NewIdentity(ref).UUID)
		if err != nil {
			var zero T

			return zero, err
		}

		defer func() { _ = dom.Free() }()

		return f(c, dom)
	})
}

// change makes a call that changes the request's domain.
func (d *Driver) change(ctx context.Context, ref driver.Ref, verb string, f func(*libvirt.Domain) error) error {
	_, err := domainCall(ctx, d, ref, verb, func(_ *libvirt.Connect, dom *libvirt.Domain) (struct{}, error) {
		return struct{}{}, f(dom)
	})

	return err
}

// domains returns all domains of a provider.
func (d *Driver) domains(ctx context.Context, provider string) ([]*domain, error) {
	return connection.Call(ctx, d.conn, "list domains", func(c *libvirt.Connect) ([]*domain, error) {
		host, err := c.GetHostname()
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
			one, err := readDomain(&all[i], host)
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
func (d *Driver) checkDomainIsFree(ctx context.Context, ref driver.Ref) error {
	name, uuid := namesOf(ref).Domain, driver.NewIdentity(ref).UUID

	taken, err := connection.Call(ctx, d.conn, fmt.Sprintf("look up domain %q", name), func(c *libvirt.Connect) (string, error) {
		for _, lookup := range []func() (*libvirt.Domain, error){
			func() (*libvirt.Domain, error) { return c.LookupDomainByName(name) },
			func() (*libvirt.Domain, error) { return c.LookupDomainByUUIDString(uuid) },
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

			if own == nil || own.mark.ref() != ref {
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

// powerOf says which position of the switch a state of a domain means. A paused machine is on: it goes on where it was.
func powerOf(state libvirt.DomainState) driver.Power {
	switch state {
	case libvirt.DOMAIN_RUNNING, libvirt.DOMAIN_BLOCKED, libvirt.DOMAIN_PAUSED, libvirt.DOMAIN_SHUTDOWN, libvirt.DOMAIN_PMSUSPENDED:
		return driver.PowerOn
	case libvirt.DOMAIN_SHUTOFF, libvirt.DOMAIN_CRASHED:
		return driver.PowerOff
	default:
		return driver.PowerUnknown
	}
}

// stateName is virsh's word for a state.
func stateName(state libvirt.DomainState) string {
	names := map[libvirt.DomainState]string{
		libvirt.DOMAIN_RUNNING:     "running",
		libvirt.DOMAIN_BLOCKED:     "idle",
		libvirt.DOMAIN_PAUSED:      "paused",
		libvirt.DOMAIN_SHUTDOWN:    "in shutdown",
		libvirt.DOMAIN_SHUTOFF:     "shut off",
		libvirt.DOMAIN_CRASHED:     "crashed",
		libvirt.DOMAIN_PMSUSPENDED: "pmsuspended",
	}

	if name, ok := names[state]; ok {
		return name
	}

	return "no state"
}

// domainWithAddress returns the name of a domain, other than the one with that UUID, that has an interface with the hardware
// address; empty if there is none.
func (d *Driver) domainWithAddress(ctx context.Context, address, except string) (string, error) {
	return connection.Call(ctx, d.conn, "look for hardware address "+address, func(c *libvirt.Connect) (string, error) {
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

			if !strings.EqualFold(uuid, except) && strings.Contains(strings.ToLower(desc), "'"+address+"'") {
				found = name
			}
		}

		return found, nil
	})
}
