package virt

// Machine is a machine as the cluster's owner sees it.
type Machine struct {
	Namespace, Name, UID string
	// UUID is the firmware's.
	UUID                string
	Labels, Annotations map[string]string
	// On says that a guest runs, paused or not.
	On bool
	// Boots counts how often the guest was started or restarted.
	Boots int
}

// Machines returns all machines, in the order of their names.
func (c *Controller) Machines() []Machine {
	var all []Machine

	for _, vm := range c.vms.List() {
		m := Machine{
			Namespace: vm.Namespace, Name: vm.Name, UID: string(vm.UID), Labels: vm.Labels, Annotations: vm.Annotations,
		}

		if t := vm.Spec.Template; t != nil && t.Spec.Domain.Firmware != nil {
			m.UUID = string(t.Spec.Domain.Firmware.UUID)
		}

		// What runs is on before its status says so.
		if vmi := c.instanceOf(vm); vmi != nil {
			if d := c.domain(vmi.UID); d != nil && d.run.Load() != nil {
				_, ended := d.ended()
				m.On = !ended
			}
		}

		// What is on has been counted.
		m.Boots = c.Boots(m.UID)

		all = append(all, m)
	}

	return all
}
