package conformance

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/omni-infra/omni-infra-providers/sim/ledger"
)

const (
	// hookTime is how long a hook may take, and maxHookOutput how much it may print.
	hookTime      = 20 * time.Second
	maxHookOutput = 4 << 20
	// maxHookErrors is how much of a hook's errors is told.
	maxHookErrors = 4 << 10
)

// errUnseen is what cases end with that turn out to need something that there is not here.
var errUnseen = errors.New("not visible here")

// hook is the cloud as a program of its owner shows it. docs/hook.md has the protocol. What goes wrong with the program is not the
// provider's fault: the case panics with an error.
type hook struct {
	program string
	env     *env
	// countsBoots says that the case needs to know how often machines were booted.
	countsBoots bool
}

// Machines returns the machines of all providers of the case.
func (h *hook) Machines() []ledger.Machine {
	var all []ledger.Machine

	for _, provider := range h.env.providerIDs() {
		text, err := h.run(provider, "list")
		if err != nil {
			panic(err)
		}

		machines, err := parseMachines(text)
		if err != nil {
			panic(fmt.Errorf("hook %s list: %w", h.program, err))
		}

		for _, m := range machines {
			if m.Boots == nil && h.countsBoots {
				panic(fmt.Errorf("%w: the hook does not count boots", errUnseen))
			}

			// A hook that cannot tell providers apart lists each machine several times.
			if !slices.ContainsFunc(all, func(o ledger.Machine) bool { return o.ID == m.ID }) {
				all = append(all, m.machine())
			}
		}
	}

	return all
}

// DeleteMachine removes a machine.
func (h *hook) DeleteMachine(id string) error {
	h.env.note("someone deletes machine %s", id)
	_, err := h.run(h.env.provider, "remove", id)

	return err
}

// SwitchOff switches a machine off.
func (h *hook) SwitchOff(id string) error {
	h.env.note("someone switches machine %s off", id)
	_, err := h.run(h.env.provider, "power", id, "off")

	return err
}

func (h *hook) run(provider string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(h.env.asked, hookTime)
	defer cancel()

	stdout, stderr := beginning{max: maxHookOutput}, beginning{max: maxHookErrors}

	cmd := exec.CommandContext(ctx, h.program, args...)
	cmd.Env = append(cleanEnv(), "PROVIDER_ID="+provider)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.WaitDelay = pipeTime
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	// What a script has started ends with it.
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }

	err := cmd.Run()

	switch what := fmt.Sprintf("hook %s %s", h.program, strings.Join(args, " ")); {
	case errors.Is(ctx.Err(), context.DeadlineExceeded):
		return nil, fmt.Errorf("%s: no end after %s", what, hookTime)
	case err != nil:
		return nil, fmt.Errorf("%s: %w: %s", what, err, strings.TrimSpace(string(stderr.kept)))
	case stdout.more:
		return nil, fmt.Errorf("%s: prints more than %d bytes", what, maxHookOutput)
	}

	return stdout.kept, nil
}

// beginning keeps the first bytes of what is written to it, and whether there were more.
type beginning struct {
	max  int
	kept []byte
	more bool
}

// Write never fails: what is too much is forgotten.
func (b *beginning) Write(data []byte) (int, error) {
	fits := min(len(data), b.max-len(b.kept))
	b.kept = append(b.kept, data[:fits]...)
	b.more = b.more || fits < len(data)

	return len(data), nil
}

// hookMachine is a machine as a hook prints it.
type hookMachine struct {
	ID      string `json:"id"`
	Name    string `json:"name"`
	UUID    string `json:"uuid"`
	Request string `json:"request"`
	Power   string `json:"power"`
	Boots   *int   `json:"boots"`
}

func (m hookMachine) machine() ledger.Machine {
	machine := ledger.Machine{ID: m.ID, Name: m.Name, UUID: m.UUID, On: m.Power == "on"}

	if m.Boots != nil {
		machine.Boots = *m.Boots
	}

	if m.Request != "" {
		machine.Tags = map[string]string{"request": m.Request}
	}

	return machine
}

// parseMachines reads what a hook prints for list: JSON objects one after the other, or one array of them.
func parseMachines(text []byte) ([]hookMachine, error) {
	var all []hookMachine

	decoder := json.NewDecoder(bytes.NewReader(text))

	if text = bytes.TrimSpace(text); len(text) > 0 && text[0] == '[' {
		if err := decoder.Decode(&all); err != nil {
			return nil, fmt.Errorf("want a JSON array of machines: %w", err)
		}
	}

	for {
		var m hookMachine

		err := decoder.Decode(&m)
		if errors.Is(err, io.EOF) {
			break
		}

		if err != nil {
			return nil, fmt.Errorf("machine %d: want a JSON object: %w", len(all)+1, err)
		}

		all = append(all, m)
	}

	seen := map[string]bool{}

	for i, m := range all {
		switch {
		case m.ID == "":
			return nil, fmt.Errorf("machine %d: id is missing", i+1)
		case seen[m.ID]:
			return nil, fmt.Errorf("machine %d: id %q is there twice", i+1, m.ID)
		case m.Power != "on" && m.Power != "off":
			return nil, fmt.Errorf("machine %q: power is %q, want on or off", m.ID, m.Power)
		case m.Boots != nil && *m.Boots < 0:
			return nil, fmt.Errorf("machine %q: boots is %d, want a number that is not negative", m.ID, *m.Boots)
		}

		seen[m.ID] = true
	}

	return all, nil
}
