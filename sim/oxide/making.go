package oxide

import (
	"slices"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

// instanceCreate is the body of instance_create, which tells SSH keys that are not named from an empty list.
type instanceCreate struct {
	api.InstanceCreate
}

func (b instanceCreate) starts() bool { return b.Start == nil || *b.Start }

// making is the creation of an instance: everything that belongs to it, or nothing.
type making struct {
	*call
	in   *project
	body instanceCreate
	made *instance
	// created are the disks that are made for it, attached those that it gets.
	created, attached []*disk
}

func (m *making) make() error {
	b := m.body

	for _, check := range []func() error{
		func() error { return checkName(string(b.Name)) },
		func() error { return checkHostname(string(b.Hostname)) },
		func() error { return checkSizes(int(b.Ncpus), int64(b.Memory)) }, //nolint:gosec // It is checked there.
		m.checkCounts,
		func() error { return m.instances.free(m.in.id, string(b.Name), "") },
	} {
		if err := check(); err != nil {
			return err
		}
	}

	data, err := readUserData(b.UserData)
	if err != nil {
		return err
	}

	keys, err := m.keys()
	if err != nil {
		return err
	}

	groups, err := m.groups()
	if err != nil {
		return err
	}

	m.made = &instance{
		meta: m.newMeta(string(b.Name), b.Description, m.in.id), hostname: string(b.Hostname), cpus: int(b.Ncpus),
		memory: int64(b.Memory), platform: b.CpuPlatform, policy: b.AutoRestartPolicy, //nolint:gosec // As above.
		jumbo: b.EnableJumboFrames != nil && *b.EnableJumboFrames, userData: data, keys: keys,
	}
	m.made.enter(api.InstanceStateCreating)
	m.instances.add(m.ledger, m.made, false)

	for _, g := range groups {
		g.members = append(g.members, m.made.id)
	}

	if err := m.makeNICs(); err != nil {
		return err
	}

	if err := m.addresses(); err != nil {
		return err
	}

	return m.disks()
}

func (m *making) checkCounts() error {
	b, disks, ephemeral := m.body, len(m.body.Disks), 0

	if b.BootDisk.Value != nil {
		disks++
	}

	for _, e := range b.ExternalIps {
		if _, ok := e.Value.(*api.ExternalIpCreateEphemeral); ok {
			ephemeral++
		}
	}

	switch {
	case disks > maxDisks:
		return invalidRequest("cannot attach more than %d disks to instance", maxDisks)
	case len(b.ExternalIps) > maxExternal:
		return invalidRequest("An instance may not have more than %d external IP addresses", maxExternal)
	case ephemeral > maxEphemeral:
		return invalidRequest("An instance may not have more than %d ephemeral IP addresses", maxEphemeral)
	case len(b.AntiAffinityGroups) > maxGroups:
		return invalidRequest("An instance may not have more than %d anti-affinity groups", maxGroups)
	case len(b.SshPublicKeys) > maxKeys:
		return invalidRequest("cannot attach more than %d ssh keys to the instance", maxKeys)
	}

	return nil
}

// readUserData reads user data as the API takes it.
func readUserData(text string) ([]byte, error) {
	data, err := decodeBase64(text)

	switch {
	case err != nil:
		return nil, badBody("user_data: invalid value: invalid base64 string, expected a valid base64 string")
	case len(data) > maxUserData:
		return nil, badRequest("unable to parse JSON body: user_data: invalid length %d, expected less than 32 KiB", len(data))
	}

	return data, nil
}

// keys are those that are named, or all of the user.
func (m *making) keys() (ids []string, err error) {
	if m.body.SshPublicKeys == nil {
		for _, k := range m.sshKeys.in(m.user.id) {
			ids = append(ids, k.id)
		}

		return ids, nil
	}

	for _, text := range m.body.SshPublicKeys {
		k, err := within(&m.sshKeys, &project{meta{id: m.user.id}}, string(text))
		if err != nil {
			return nil, err
		}

		if !slices.Contains(ids, k.id) {
			ids = append(ids, k.id)
		}
	}

	return ids, nil
}

func (m *making) groups() (found []*group, err error) {
	for _, text := range m.body.AntiAffinityGroups {
		g, err := within(&m.antiGroup, m.in, string(text))

		switch {
		case err != nil:
			return nil, err
		case len(g.members) >= maxMembers:
			return nil, forbiddenMember(g)
		case !slices.Contains(found, g):
			found = append(found, g)
		}
	}

	return found, nil
}

// disks makes the disks that are to be made and takes those that are there.
func (m *making) disks() error {
	if m.body.BootDisk.Value != nil {
		d, err := m.disk(m.body.BootDisk)
		if err != nil {
			return err
		}

		m.made.boot = d.id
	}

	for _, a := range m.body.Disks {
		if _, err := m.disk(a); err != nil {
			return err
		}
	}

	return nil
}

func (m *making) disk(a api.InstanceDiskAttachment) (d *disk, err error) {
	switch a := a.Value.(type) {
	case *api.InstanceDiskAttachmentCreate:
		if d, err = m.newDiskLocked(m.in, api.DiskCreate(*a)); err != nil {
			return nil, err
		}

		if d.pantry {
			m.created = append(m.created, d)

			return nil, invalidRequest("cannot attach disk %q: disk is in state ImportReady", d.name)
		}

		m.created = append(m.created, d)
	case *api.InstanceDiskAttachmentAttach:
		if d, err = within(&m.call.disks, m.in, string(a.Name)); err != nil {
			return nil, err
		}

		if err := d.attachable(); err != nil {
			return nil, err
		}

		d.enter(api.DiskStateStateAttaching)
	default:
		return nil, badBody("missing field `type`")
	}

	d.instance = m.made.id
	m.attached = append(m.attached, d)

	return d, nil
}

// unwind takes back what was made before something failed.
func (m *making) unwind() {
	for _, d := range m.created {
		m.dropDiskLocked(d)
	}

	if m.made != nil {
		m.dropInstanceLocked(m.made)()
	}
}

// finish ends the creation.
func (m *making) finish() {
	for _, d := range m.attached {
		if d.instance == m.made.id {
			d.enter(api.DiskStateStateAttached)
		}
	}

	m.made.enter(api.InstanceStateStopped)
}
