package oxide

import (
	"net/http"

	api "github.com/oxidecomputer/oxide.go/oxide"
)

// Resources are virtual processors, and bytes of memory and storage.
type Resources struct {
	CPUs            int
	Memory, Storage int64
}

// Sled is a computer of the rack.
type Sled struct {
	Name   string
	CPUs   int
	Memory int64
	// Platform is its processor; amd_milan if empty.
	Platform api.InstanceCpuPlatform
}

const (
	noCPUs = "vCPU Limit Exceeded: Not enough vCPUs to complete request. Either stop unused instances to free up resources " +
		"or contact the rack operator to request a capacity increase."
	noMemory = "Memory Limit Exceeded: Not enough memory to complete request. Either stop unused instances to free up resources " +
		"or contact the rack operator to request a capacity increase."
	noStorage = "Storage Limit Exceeded: Not enough storage to complete request. Either remove unneeded disks and snapshots to " +
		"free up resources or contact the rack operator to request a capacity increase."
	noSled = "No sleds can fit the requested instance"
)

// usedLocked is what the silo uses: processors and memory of instances that are on, storage of disks and snapshots.
func (r *Rack) usedLocked() (used Resources) {
	for _, i := range r.instances.rows {
		if i.placed {
			used.CPUs += i.cpus
			used.Memory += i.memory
		}
	}

	for _, d := range r.disks.rows {
		used.Storage += d.size
	}

	for _, s := range r.snapshots.rows {
		used.Storage += s.content.size
	}

	return used
}

// storageLocked says whether the quota has room for that many bytes more.
func (r *Rack) storageLocked(size int64) error {
	if q := r.opts.Quota.Storage; q > 0 && r.usedLocked().Storage+size > q {
		return insufficient(noStorage)
	}

	return nil
}

// placeLocked finds a sled for an instance that is to be started.
func (r *Rack) placeLocked(i *instance) error {
	used, quota := r.usedLocked(), r.opts.Quota

	switch {
	case quota.CPUs > 0 && used.CPUs+i.cpus > quota.CPUs:
		return insufficient(noCPUs)
	case quota.Memory > 0 && used.Memory+i.memory > quota.Memory:
		return insufficient(noMemory)
	case r.opts.Sleds == nil:
		i.placed = true

		return nil
	}

	avoided := r.avoidedLocked(i)
	best := -1

	for n, s := range r.opts.Sleds {
		keeps, forced := avoided[n], avoided[n] == api.AffinityPolicyFail

		switch {
		case forced, !s.suits(i.platform), !r.roomLocked(n, i):
		case keeps == "":
			i.placed, i.sled = true, n

			return nil
		case best < 0:
			best = n
		}
	}

	if best < 0 {
		return insufficient(noSled)
	}

	i.placed, i.sled = true, best

	return nil
}

// suits says whether a sled can run what asks for that platform: a newer processor can run what is made for an older one.
func (s Sled) suits(asked api.InstanceCpuPlatform) bool {
	rank := map[api.InstanceCpuPlatform]int{
		"": 0, api.InstanceCpuPlatformAmdMilan: 0, api.InstanceCpuPlatformAmdTurin: 1, api.InstanceCpuPlatformAmdTurinV2: 2,
	}

	return rank[s.Platform] >= rank[asked]
}

func (r *Rack) roomLocked(sled int, wanted *instance) bool {
	s := r.opts.Sleds[sled]
	cpus, memory := s.CPUs-wanted.cpus, s.Memory-wanted.memory

	for _, i := range r.instances.rows {
		if i.placed && i.sled == sled {
			cpus -= i.cpus
			memory -= i.memory
		}
	}

	return cpus >= 0 && memory >= 0
}

// avoidedLocked has the sleds on which members of the instance's anti-affinity groups are, with the strictest policy.
func (r *Rack) avoidedLocked(i *instance) map[int]api.AffinityPolicy {
	avoided := map[int]api.AffinityPolicy{}

	for _, g := range r.antiGroup.rows {
		if !g.has(i.id) {
			continue
		}

		for _, other := range r.instances.rows {
			if other != i && other.placed && g.has(other.id) && avoided[other.sled] != api.AffinityPolicyFail {
				avoided[other.sled] = g.policy
			}
		}
	}

	return avoided
}

func (c *call) utilization() (int, any, error) {
	used, quota := c.usedLocked(), c.opts.Quota
	counts := func(r Resources) api.VirtualResourceCounts {
		return api.VirtualResourceCounts{
			Cpus: new(r.CPUs), Memory: api.ByteCount(r.Memory), Storage: api.ByteCount(r.Storage), //nolint:gosec // None is negative.
		}
	}

	// A silo without limits has the largest that there are.
	unlimited := Resources{CPUs: 1 << 20, Memory: 1 << 50, Storage: 1 << 60}
	if quota.CPUs == 0 {
		quota.CPUs = unlimited.CPUs
	}

	if quota.Memory == 0 {
		quota.Memory = unlimited.Memory
	}

	if quota.Storage == 0 {
		quota.Storage = unlimited.Storage
	}

	return http.StatusOK, api.Utilization{Provisioned: counts(used), Capacity: counts(quota)}, nil
}
