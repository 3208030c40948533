// Package talosapi is what a simulated machine and the fake Omni say to each other once the machine has joined. A real Omni
// reaches the Talos API of its machines through a WireGuard tunnel and learns from handshakes whether they are alive; here
// the SideroLink service's own WireGuard-over-gRPC stream is held open instead, and its packets carry the JSON messages of
// this package. The stream's end is the tunnel's end. sim/omni and sim/talos import it.
package talosapi

import (
	"encoding/json"
	"fmt"
)

// AddressKey is the gRPC metadata key that carries the machine's own SideroLink address, the one the provision call
// answered with, when it opens the stream.
const AddressKey = "x-siderolink-ipv6-addr"

// Stage is where a machine is in its life, in the words of Talos' machine stages.
type Stage string

// The stages that a simulated machine reports.
const (
	StageBooting      Stage = "booting"
	StageMaintenance  Stage = "maintenance"
	StageRunning      Stage = "running"
	StageRebooting    Stage = "rebooting"
	StageShuttingDown Stage = "shutting_down"
	StageResetting    Stage = "resetting"
)

// Report is what a machine says of itself: once when the tunnel is up, and again at each change of stage.
type Report struct {
	UUID         string `json:"uuid"`
	Stage        Stage  `json:"stage"`
	BootID       string `json:"boot_id"`
	TalosVersion string `json:"talos_version"`
	Schematic    string `json:"schematic,omitempty"`
	Hostname     string `json:"hostname,omitempty"`
	Arch         string `json:"arch,omitempty"`
	CPUs         int    `json:"cpus,omitempty"`
	MemoryMiB    int    `json:"memory_mib,omitempty"`
	Disks        []Disk `json:"disks,omitempty"`
}

// Disk is a block device of a machine.
type Disk struct {
	Name string `json:"name"`
	Size uint64 `json:"size"`
}

// Command is what Omni asks of a machine through the Talos API.
type Command string

// The commands that a simulated machine obeys. CommandUniqueToken carries the node unique token that Omni writes to META
// before the machine joins again with it, and CommandUUID the UUID that resolves a conflict.
const (
	CommandReset       Command = "reset"
	CommandReboot      Command = "reboot"
	CommandShutdown    Command = "shutdown"
	CommandUniqueToken Command = "unique_token"
	CommandUUID        Command = "uuid"
)

// Message is one packet: a Report from the machine, or a Command to it.
type Message struct {
	Report  *Report `json:"report,omitempty"`
	Command Command `json:"command,omitempty"`
	// Value is the token or UUID that the command carries.
	Value string `json:"value,omitempty"`
}

// Encode returns the packet of m.
func Encode(m Message) ([]byte, error) { return json.Marshal(m) }

// Decode parses a packet. A packet that is neither report nor command is an error.
func Decode(data []byte) (Message, error) {
	var m Message
	if err := json.Unmarshal(data, &m); err != nil {
		return Message{}, fmt.Errorf("decode tunnel packet of %d bytes: %w", len(data), err)
	}

	if (m.Report == nil) == (m.Command == "") {
		return Message{}, fmt.Errorf("decode tunnel packet of %d bytes: want either a report or a command", len(data))
	}

	return m, nil
}
