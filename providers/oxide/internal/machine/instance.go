package machine

import (
	"encoding/base64"
	"net/netip"

	"github.com/oxidecomputer/oxide.go/oxide"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

const gib = 1 << 30

// Instance is what makes the request's machine, with its disks and addresses, and starts it. The user data goes where nobody reads it back.
func (c ClassData) Instance(ref driver.Ref, version, imageID, userData string) (oxide.InstanceCreate, error) {
	names := NamesOf(ref)

	mark, err := (Mark{Kind: KindInstance, Provider: ref.ProviderID, Request: ref.RequestID, Version: version}).Description()
	if err != nil {
		return oxide.InstanceCreate{}, err
	}

	disk, err := (Mark{Kind: KindDisk, Provider: ref.ProviderID, Request: ref.RequestID, Version: version}).Description()
	if err != nil {
		return oxide.InstanceCreate{}, err
	}

	start := true
	body := oxide.InstanceCreate{
		Name: oxide.Name(names.Instance), Description: mark, Hostname: oxide.Hostname(c.hostname(ref.RequestID)),
		Ncpus: oxide.InstanceCpuCount(c.CPUs), Memory: oxide.ByteCount(c.Memory) * gib,
		AutoRestartPolicy: oxide.InstanceAutoRestartPolicy(c.AutoRestartPolicy),
		CpuPlatform:       c.platform(),
		EnableJumboFrames: &c.EnableJumboFrames,
		// It is named as such: the order of a list of disks says nothing.
		BootDisk: oxide.InstanceDiskAttachment{Value: &oxide.InstanceDiskAttachmentCreate{
			Name: oxide.Name(names.Boot), Description: disk, Size: oxide.ByteCount(c.BootDiskSize) * gib,
			DiskBackend: distributed(oxide.DiskSource{Value: &oxide.DiskSourceImage{ImageId: imageID}}),
		}},
		// A list that is not there would be all keys of the token's user.
		SshPublicKeys: namesOrIDs(c.SSHKeys),
		UserData:      base64.StdEncoding.EncodeToString([]byte(userData)),
		Start:         &start,
	}

	if len(c.AntiAffinityGroups) > 0 {
		body.AntiAffinityGroups = namesOrIDs(c.AntiAffinityGroups)
	}

	for i, d := range c.Disks {
		backend := distributed(oxide.DiskSource{Value: &oxide.DiskSourceBlank{BlockSize: BlockSize}})
		if d.Type == diskLocal {
			backend = oxide.DiskBackend{Value: &oxide.DiskBackendLocal{}}
		}

		body.Disks = append(body.Disks, oxide.InstanceDiskAttachment{Value: &oxide.InstanceDiskAttachmentCreate{
			Name: oxide.Name(names.Disk(i)), Description: disk, Size: oxide.ByteCount(d.Size) * gib, DiskBackend: backend,
		}})
	}

	nics := make([]oxide.InstanceNetworkInterfaceCreate, len(c.NetworkInterfaces))
	for i, nic := range c.NetworkInterfaces {
		nics[i] = oxide.InstanceNetworkInterfaceCreate{
			Name: oxide.Name(interfaceName(i)), VpcName: oxide.Name(nic.VPCName), SubnetName: oxide.Name(nic.SubnetName), IpConfig: nic.stack(),
		}
	}

	body.NetworkInterfaces = oxide.InstanceNetworkInterfaceAttachment{Value: &oxide.InstanceNetworkInterfaceAttachmentCreate{Params: nics}}

	for i, ip := range c.ExternalIPs {
		body.ExternalIps = append(body.ExternalIps, ip.create(names, i))
	}

	return body, nil
}

func (c ClassData) platform() oxide.InstanceCpuPlatform {
	switch c.CPUPlatform {
	case platformAny:
		return ""
	case "amd_turinv2":
		return oxide.InstanceCpuPlatformAmdTurinV2
	default:
		return oxide.InstanceCpuPlatform(c.CPUPlatform)
	}
}

func (n NetworkInterface) stack() oxide.PrivateIpStackCreate {
	four := oxide.PrivateIpv4StackCreate{Ip: oxide.Ipv4Assignment{Value: &oxide.Ipv4AssignmentAuto{}}}
	six := oxide.PrivateIpv6StackCreate{Ip: oxide.Ipv6Assignment{Value: &oxide.Ipv6AssignmentAuto{}}}

	for _, text := range n.TransitIPs {
		if prefix, err := netip.ParsePrefix(text); err == nil && prefix.Addr().Is4() {
			four.TransitIps = append(four.TransitIps, oxide.Ipv4Net(text))
		} else {
			six.TransitIps = append(six.TransitIps, oxide.Ipv6Net(text))
		}
	}

	switch n.IPConfig {
	case v6:
		return oxide.PrivateIpStackCreate{Value: &oxide.PrivateIpStackCreateV6{Value: six}}
	case dualStack:
		return oxide.PrivateIpStackCreate{Value: &oxide.PrivateIpStackCreateDualStack{
			Value: oxide.PrivateIpStackCreateDualStackValue{V4: four, V6: six},
		}}
	default:
		return oxide.PrivateIpStackCreate{Value: &oxide.PrivateIpStackCreateV4{Value: four}}
	}
}

func (e ExternalIP) create(names Names, i int) oxide.ExternalIpCreate {
	switch {
	case e.Kind == Ephemeral:
		return oxide.ExternalIpCreate{Value: &oxide.ExternalIpCreateEphemeral{PoolSelector: e.selector()}}
	case e.Name != "":
		return oxide.ExternalIpCreate{Value: &oxide.ExternalIpCreateFloating{FloatingIp: oxide.NameOrId(e.Name)}}
	default:
		return oxide.ExternalIpCreate{Value: &oxide.ExternalIpCreateFloating{FloatingIp: oxide.NameOrId(names.FloatingIP(i))}}
	}
}

func (e ExternalIP) selector() oxide.PoolSelector {
	if e.Pool != "" {
		return oxide.PoolSelector{Value: &oxide.PoolSelectorExplicit{Pool: oxide.NameOrId(e.Pool)}}
	}

	return oxide.PoolSelector{Value: &oxide.PoolSelectorAuto{IpVersion: oxide.IpVersion(e.IPVersion)}}
}

// FloatingIP is what makes the floating IP for entry i of the class's external IPs.
func (c ClassData) FloatingIP(ref driver.Ref, version string, i int) (oxide.FloatingIpCreate, error) {
	mark, err := (Mark{Kind: KindFloatingIP, Provider: ref.ProviderID, Request: ref.RequestID, Version: version}).Description()

	return oxide.FloatingIpCreate{
		Name: oxide.Name(NamesOf(ref).FloatingIP(i)), Description: mark,
		AddressAllocator: oxide.AddressAllocator{Value: &oxide.AddressAllocatorAuto{PoolSelector: c.ExternalIPs[i].selector()}},
	}, err
}

// Objects are the names of all that the machine will have, by their part.
func (c ClassData) Objects(ref driver.Ref) map[string]string {
	names := NamesOf(ref)
	objects := map[string]string{"instance": names.Instance, "boot-disk": names.Boot}

	for i := range c.Disks {
		objects["disk-"+names.Disk(i)[len(names.Instance)+len("-disk-"):]] = names.Disk(i)
	}

	for _, i := range c.MadeFloatingIPs() {
		objects["floating-ip-"+names.FloatingIP(i)[len(names.Instance)+len("-ip-"):]] = names.FloatingIP(i)
	}

	return objects
}

func distributed(source oxide.DiskSource) oxide.DiskBackend {
	return oxide.DiskBackend{Value: &oxide.DiskBackendDistributed{DiskSource: source}}
}

func namesOrIDs(texts []string) []oxide.NameOrId {
	out := make([]oxide.NameOrId, len(texts))
	for i, text := range texts {
		out[i] = oxide.NameOrId(text)
	}

	return out
}
