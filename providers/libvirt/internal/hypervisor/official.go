package hypervisor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"go.uber.org/zap"
	"libvirt.org/go/libvirt"
	"libvirt.org/go/libvirtxml"

	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/connection"
	"github.com/omni-infra/omni-infra-providers/providers/libvirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// CheckOfficial says whether the host has the machine that the official provider recorded, and whether it is in every point what was
// recorded: UUID, name, and volumes. It changes nothing. NotFound says that the host has no such domain.
func (h *Host) CheckOfficial(ctx context.Context, f driver.Foreign, o machine.Official) error {
	t, err := h.theirs(ctx, f, o)
	if err != nil || t.adopted {
		return err
	}

	return h.checkVolumes(ctx, t, o)
}

// Adopt puts the mark on the machine that CheckOfficial has found to be what was recorded, and starts it when nobody has yet.
func (h *Host) Adopt(ctx context.Context, f driver.Foreign, o machine.Official) (driver.Adoption, error) {
	release, err := h.lockMachine(ctx, f.Ref)
	if err != nil {
		return driver.Adoption{}, err
	}

	defer release()

	t, err := h.theirs(ctx, f, o)
	if err != nil {
		return driver.Adoption{}, err
	}

	if !t.adopted {
		if err := h.checkVolumes(ctx, t, o); err != nil {
			return driver.Adoption{}, err
		}

		if err := h.markOfficial(ctx, f, o); err != nil {
			return driver.Adoption{}, err
		}
	}

	own, err := h.domain(ctx, f.Ref)
	if err != nil {
		return driver.Adoption{}, err
	}

	if f.Unfinished && own.power() == driver.PowerOff {
		if err := h.start(ctx, own); err != nil {
			return driver.Adoption{}, err
		}

		if own, err = h.domain(ctx, f.Ref); err != nil {
			return driver.Adoption{}, err
		}
	}

	names := map[string]string{"domain": own.name}
	for i, v := range own.mark.Volumes {
		names[fmt.Sprintf("volume-%d", i+1)] = v.String()
	}

	return driver.Adoption{Machine: h.machine(own), Names: names}, nil
}

// CheckDiscard refuses to take away what the official provider recorded while somebody else has or uses a part of it. It returns
// whether the host has the domain.
func (h *Host) CheckDiscard(ctx context.Context, f driver.Foreign, o machine.Official) (has bool, err error) {
	_, err = h.theirs(ctx, f, o)
	if err != nil && !driver.IsNotFound(err) {
		return false, err
	}

	has = err == nil

	users, err := h.users(ctx, o)
	if err != nil || len(users) == 0 {
		return has, err
	}

	return false, driver.Terminalf("%s: the official provider recorded that for request %q; it is left alone until no other domain has it", list(users), f.RequestID)
}

// Discard takes away what the official provider recorded and CheckDiscard has let pass: the domain with what libvirt keeps for it, and
// the volumes.
func (h *Host) Discard(ctx context.Context, f driver.Foreign, o machine.Official) (bool, error) {
	switch t, err := h.theirs(ctx, f, o); {
	case driver.IsNotFound(err):
	case err != nil:
		return false, err
	default:
		if !t.adopted {
			// Once it has the mark, its removal is that of any other machine.
			if err := h.markOfficial(ctx, f, o); err != nil {
				return false, err
			}
		}

		if done, err := h.Remove(ctx, f.Ref); err != nil || !done {
			return false, err
		}
	}

	if err := h.removeListed(ctx, o.Volumes); err != nil {
		return false, err
	}

	return true, nil
}

// Namesakes describes what has a name that the official provider would have given for a request: the domain, if it does not carry our
// mark, and volumes in any pool.
func (h *Host) Namesakes(ctx context.Context, requestID string) ([]string, error) {
	found, err := connection.Call(ctx, h.conn, fmt.Sprintf("look up domain %q", requestID), func(c connection.Connect) ([]string, error) {
		dom, err := c.LookupDomainByName(requestID)
		if connection.Is(err, libvirt.ERR_NO_DOMAIN) {
			return nil, nil
		}

		if err != nil {
			return nil, err
		}

		defer func() { _ = dom.Free() }()

		if own, err := readDomain(dom, ""); err != nil || own != nil {
			return nil, err
		}

		return []string{fmt.Sprintf("domain %q", requestID)}, nil
	})
	if err != nil {
		return nil, err
	}

	pools, err := h.pools(ctx)
	if err != nil {
		return nil, err
	}

	for _, pool := range pools {
		volumes, err := h.volumes(ctx, pool)
		if err != nil {
			return nil, err
		}

		for _, name := range volumes {
			if machine.IsOfficialVolume(requestID, name) {
				found = append(found, fmt.Sprintf("volume %q in storage pool %q", name, pool))
			}
		}
	}

	return found, nil
}

// theirs is the domain that the official provider recorded.
type theirs struct {
	// adopted says that it carries our mark already.
	adopted bool
	disks   []diskSource
}

// diskSource is where a domain has a disk: in a volume, or in a file or device. One of both is empty.
type diskSource struct {
	volume machine.VolumeRef
	path   string
}

// found is what is read of a domain in one call.
type found struct {
	name, mark string
	desc       string
}

// theirs looks for the domain with the recorded UUID, and refuses one that is not the request's after all.
func (h *Host) theirs(ctx context.Context, f driver.Foreign, o machine.Official) (*theirs, error) {
	if o.UUID == "" {
		return nil, driver.NotFound("the official provider had not begun with the machine of request %q", f.RequestID)
	}

	got, err := connection.Call(ctx, h.conn, fmt.Sprintf("look up domain with UUID %s", o.UUID), func(c connection.Connect) (found, error) {
		dom, err := c.LookupDomainByUUIDString(o.UUID)
		if err != nil {
			return found{}, err
		}

		defer func() { _ = dom.Free() }()

		var got found

		if got.name, err = dom.GetName(); err != nil {
			return found{}, err
		}

		if got.desc, err = dom.GetXMLDesc(libvirt.DOMAIN_XML_INACTIVE); err != nil {
			return found{}, err
		}

		got.mark, err = dom.GetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, machine.MarkNamespace, libvirt.DOMAIN_AFFECT_CURRENT)
		if connection.Is(err, libvirt.ERR_NO_DOMAIN_METADATA) {
			err = nil
		}

		return got, err
	})
	if driver.IsNotFound(err) {
		return nil, h.notTheirs(ctx, f, o)
	}

	if err != nil {
		return nil, err
	}

	t := &theirs{}

	if got.mark != "" {
		m, err := machine.ParseMark(got.mark)

		switch {
		case err != nil:
			return nil, driver.Terminalf("domain %q carries a mark that cannot be read: it is left alone: %w", got.name, err)
		case m.Ref() != f.Ref || !m.Owns(o.UUID):
			return nil, driver.Terminalf("domain %q carries the mark of request %q of provider %q: it is that one's, and left alone", got.name, m.Request, m.Provider)
		}

		t.adopted = true
	}

	// An adopted machine is looked up by its name as well: see lookUp.
	if got.name != o.Domain {
		return nil, driver.Terminalf("the domain with UUID %s is called %q, not %q as the official provider recorded: it is left alone; if it is the machine of request %q, "+
			"call it that again: virsh domrename %s %s", o.UUID, got.name, o.Domain, f.RequestID, got.name, o.Domain)
	}

	if t.disks, err = disksOf(got.desc); err != nil {
		return nil, fmt.Errorf("look at domain %q: %w", got.name, err)
	}

	return t, nil
}

// notTheirs says that no domain has the recorded UUID, and what another one with the name is.
func (h *Host) notTheirs(ctx context.Context, f driver.Foreign, o machine.Official) error {
	uuid, err := connection.Call(ctx, h.conn, fmt.Sprintf("look up domain %q", o.Domain), func(c connection.Connect) (string, error) {
		dom, err := c.LookupDomainByName(o.Domain)
		if connection.Is(err, libvirt.ERR_NO_DOMAIN) {
			return "", nil
		}

		if err != nil {
			return "", err
		}

		defer func() { _ = dom.Free() }()

		return dom.GetUUIDString()
	})

	switch {
	case err != nil:
		return err
	case uuid == "":
		return driver.NotFound("libvirt has no domain with UUID %s, which the official provider recorded for request %q", o.UUID, f.RequestID)
	default:
		return driver.NotFound("libvirt has no domain with UUID %s, which the official provider recorded for request %q; the domain called %q has UUID %s: it is not the request's machine, and left alone",
			o.UUID, f.RequestID, o.Domain, uuid)
	}
}

func disksOf(desc string) ([]diskSource, error) {
	var doc libvirtxml.Domain
	if err := doc.Unmarshal(desc); err != nil {
		return nil, fmt.Errorf("read its description: %w", err)
	}

	if doc.Devices == nil {
		return nil, nil
	}

	var out []diskSource

	for _, disk := range doc.Devices.Disks {
		switch source := disk.Source; {
		case source == nil:
		case source.Volume != nil:
			out = append(out, diskSource{volume: machine.VolumeRef{Pool: source.Volume.Pool, Name: source.Volume.Volume}})
		case source.File != nil && source.File.File != "":
			out = append(out, diskSource{path: source.File.File})
		case source.Block != nil && source.Block.Dev != "":
			out = append(out, diskSource{path: source.Block.Dev})
		}
	}

	return out, nil
}

// checkVolumes refuses a machine whose disks are not the recorded volumes. Disks that were added to it are not the request's: they
// are no part of the adoption, and outlive the machine.
func (h *Host) checkVolumes(ctx context.Context, t *theirs, o machine.Official) error {
	for _, v := range o.Volumes {
		path, err := h.locate(ctx, v)

		switch {
		case driver.IsNotFound(err):
			return driver.Terminalf("libvirt has no volume %q in storage pool %q, which the official provider recorded for domain %q: the domain is left alone", v.Name, v.Pool, o.Domain)
		case err != nil:
			return err
		}

		if !slices.ContainsFunc(t.disks, func(d diskSource) bool { return d.volume == v || d.path != "" && d.path == path }) {
			return driver.Terminalf("volume %q in storage pool %q, which the official provider recorded for domain %q, is no disk of that domain: the domain is left alone; "+
				"attach the volume again (virsh edit %s)", v.Name, v.Pool, o.Domain, o.Domain)
		}
	}

	users, err := h.users(ctx, o)
	if err == nil && len(users) > 0 {
		return driver.Terminalf("%s: the official provider recorded that for domain %q, which is left alone until no other domain has it", list(users), o.Domain)
	}

	return err
}

// locate returns the path of a volume.
func (h *Host) locate(ctx context.Context, v machine.VolumeRef) (string, error) {
	got, err := h.volume(ctx, v.Pool, v.Name)
	if driver.IsNotFound(err) {
		// libvirt may not have looked into the pool since it was started.
		if err := h.refresh(ctx, v.Pool); err != nil {
			return "", err
		}

		got, err = h.volume(ctx, v.Pool, v.Name)
	}

	return got.Path, err
}

// users says which of the recorded volumes are disks of other domains.
func (h *Host) users(ctx context.Context, o machine.Official) ([]string, error) {
	paths := map[string]machine.VolumeRef{}

	for _, v := range o.Volumes {
		path, err := h.locate(ctx, v)

		switch {
		case driver.IsNotFound(err):
			continue
		case err != nil:
			return nil, err
		}

		paths[path] = v
	}

	if len(paths) == 0 {
		return nil, nil
	}

	return connection.Call(ctx, h.conn, fmt.Sprintf("look for users of the volumes of domain %q", o.Domain), func(c connection.Connect) ([]string, error) {
		all, err := c.ListAllDomains(0)
		if err != nil {
			return nil, err
		}

		var users []string

		for i := range all {
			uuid, uuidErr := all[i].GetUUIDString()
			name, nameErr := all[i].GetName()
			live, liveErr := all[i].GetXMLDesc(0)
			desc, descErr := all[i].GetXMLDesc(libvirt.DOMAIN_XML_INACTIVE)
			_ = all[i].Free()

			if err := errors.Join(uuidErr, nameErr, liveErr, descErr); err != nil {
				if connection.Is(liveErr, libvirt.ERR_NO_DOMAIN) || connection.Is(descErr, libvirt.ERR_NO_DOMAIN) {
					continue
				}

				return nil, err
			}

			if strings.EqualFold(uuid, o.UUID) {
				continue
			}

			for _, text := range []string{live, desc} {
				disks, err := disksOf(text)
				if err != nil {
					return nil, fmt.Errorf("look at domain %q: %w", name, err)
				}

				for _, disk := range disks {
					v, ok := paths[disk.path]
					if !ok && slices.Contains(o.Volumes, disk.volume) {
						v, ok = disk.volume, true
					}

					if user := fmt.Sprintf("volume %q in storage pool %q is a disk of domain %q", v.Name, v.Pool, name); ok && !slices.Contains(users, user) {
						users = append(users, user)
					}
				}
			}
		}

		return users, nil
	})
}

// markOfficial puts the mark on the domain with the recorded UUID.
func (h *Host) markOfficial(ctx context.Context, f driver.Foreign, o machine.Official) error {
	m := machine.Mark{
		Provider: f.ProviderID, Request: f.RequestID, Set: f.Set, Version: h.config.Version, Created: time.Now().UTC().Truncate(time.Second),
		UUID: o.UUID, Volumes: o.Volumes,
	}
	if len(o.Volumes) > 0 {
		m.Pool = o.Volumes[0].Pool
	}

	element, err := m.Element()
	if err != nil {
		return err
	}

	h.config.Logger.Info("domain of the official provider gets the mark", zap.String("request", f.RequestID), zap.String("domain", o.Domain), zap.String("uuid", o.UUID))

	return connection.Do(ctx, h.conn, fmt.Sprintf("mark domain %q", o.Domain), func(c connection.Connect) error {
		dom, err := c.LookupDomainByUUIDString(o.UUID)
		if err != nil {
			return err
		}

		defer func() { _ = dom.Free() }()

		active, err := dom.IsActive()
		if err != nil {
			return err
		}

		impact := libvirt.DOMAIN_AFFECT_CONFIG
		if active {
			impact |= libvirt.DOMAIN_AFFECT_LIVE
		}

		return dom.SetMetadata(libvirt.DOMAIN_METADATA_ELEMENT, element, machine.MarkPrefix, machine.MarkNamespace, impact)
	})
}

// lookUp returns the request's domain: that with the UUID which the request gives, whosever it is, or one that was adopted, which has
// another.
func lookUp(c connection.Connect, ref driver.Ref) (connection.Domain, error) {
	dom, err := c.LookupDomainByUUIDString(driver.NewIdentity(ref).UUID)
	if !connection.Is(err, libvirt.ERR_NO_DOMAIN) {
		return dom, err
	}

	// The official provider gives a domain its request's id for a name.
	dom, nameErr := c.LookupDomainByName(ref.RequestID)
	if connection.Is(nameErr, libvirt.ERR_NO_DOMAIN) {
		return nil, err
	}

	if nameErr != nil {
		return nil, nameErr
	}

	own, readErr := readDomain(dom, "")
	if readErr == nil && own != nil && own.mark.Adopted() && own.mark.Ref() == ref {
		return dom, nil
	}

	_ = dom.Free()

	if readErr != nil {
		return nil, readErr
	}

	return nil, err
}

// removeListed deletes the volumes of an adopted machine, which have names that tell nothing.
func (h *Host) removeListed(ctx context.Context, volumes []machine.VolumeRef) error {
	for _, v := range volumes {
		if err := h.removeOne(ctx, v); err != nil {
			return err
		}
	}

	return nil
}

func (h *Host) removeOne(ctx context.Context, v machine.VolumeRef) error {
	release, err := h.lockPool(ctx, v.Pool)
	if err != nil {
		return err
	}

	defer release()

	if err := h.checkPoolsAreSeen(ctx, []string{v.Pool}); err != nil {
		return err
	}

	err = h.refreshIfIdle(ctx, v.Pool)
	if driver.IsNotFound(err) {
		// A pool that libvirt does not know any more holds nothing that could be removed through it.
		return nil
	}

	if err != nil {
		return err
	}

	return h.deleteVolume(ctx, v.Pool, v.Name)
}
