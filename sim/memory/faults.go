package memory

// Fault makes calls fail. Give it to Cloud.Inject.
type Fault struct {
	// Op is the call that it hits; empty hits any.
	Op Op
	// After is how many such calls go well first.
	After int
	// Times is how many calls in a row it hits then: one if zero, all if negative.
	Times int
	// Err is what the call answers with, without having had its effect.
	Err error
	// Lost lets the call have its effect, and answers ErrConnection.
	Lost bool
	// Hang lets the call wait until its context ends, without effect.
	Hang bool
}

// Inject adds a fault. Of several that fit a call, the one injected first hits it.
func (c *Cloud) Inject(f Fault) {
	c.mu.Lock()
	defer c.mu.Unlock()

	if f.Times == 0 {
		f.Times = 1
	}

	c.faults = append(c.faults, &f)
}

// ClearFaults takes all faults back.
func (c *Cloud) ClearFaults() {
	c.mu.Lock()
	defer c.mu.Unlock()

	c.faults = nil
}

// CutOff lets no call to the cloud pass until restore is called: each is refused at once, or gets no answer if the cloud is to be
// silent. Machines run on.
func (c *Cloud) CutOff(silent bool) (restore func()) {
	c.mu.Lock()
	defer c.mu.Unlock()

	cut := &Fault{Err: ErrConnection, Hang: silent}
	c.cut = cut

	for w := range c.watches {
		c.breakLocked(w)
	}

	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()

		if c.cut == cut {
			c.cut = nil
		}
	}
}

// fault returns what hits this call; the zero Fault if nothing does.
func (c *Cloud) fault(op Op) Fault {
	c.mu.Lock()
	defer c.mu.Unlock()

	if c.cut != nil {
		return *c.cut
	}

	for _, f := range c.faults {
		switch {
		case f.Op != "" && f.Op != op, f.Times == 0:
		case f.After > 0:
			f.After--
		default:
			if f.Times > 0 {
				f.Times--
			}

			return *f
		}
	}

	return Fault{}
}
