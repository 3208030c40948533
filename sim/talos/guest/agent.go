//go:build linux

package guest

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// agentPort is the name of the virtio port that a QEMU guest agent listens on.
const agentPort = "org.qemu.guest_agent.0"

// maxRequest bounds what the agent reads as one request.
const maxRequest = 64 << 10

// agent answers the commands of the QEMU guest agent protocol that hypervisors use on a running machine.
type agent struct {
	powerOff, reboot func()
	version          string
	log              *slog.Logger
}

// run serves the agent's port for as long as there is one. The host may connect and go as it likes.
func (a *agent) run() {
	port := findAgentPort()
	if port == "" {
		return
	}

	file, err := os.OpenFile(port, os.O_RDWR, 0)
	if err != nil {
		a.log.Warn("guest agent", "error", err)

		return
	}

	a.log.Info("guest agent listens", "port", port)

	for {
		if err = a.serve(file); err != nil {
			a.log.Warn("guest agent", "error", err)
		}

		time.Sleep(200 * time.Millisecond) // Nobody is connected: the port reads as ended.
	}
}

func findAgentPort() string {
	names, _ := filepath.Glob("/sys/class/virtio-ports/*/name")
	for _, name := range names {
		if readLine(name) == agentPort {
			return "/dev/" + filepath.Base(filepath.Dir(name))
		}
	}

	return ""
}

type agentRequest struct {
	Execute   string          `json:"execute"`
	Arguments json.RawMessage `json:"arguments"`
	ID        json.RawMessage `json:"id,omitempty"`
}

// serve answers requests, one a line, until the port ends.
func (a *agent) serve(port io.ReadWriter) error {
	lines := bufio.NewScanner(port)
	lines.Buffer(make([]byte, 4096), maxRequest)

	for lines.Scan() {
		// 0xff clears what an earlier client may have left half said.
		line := lines.Bytes()
		if i := bytes.LastIndexByte(line, 0xff); i >= 0 {
			line = line[i+1:]
		}

		var request agentRequest

		if line = bytes.TrimSpace(line); len(line) == 0 {
			continue
		}

		if err := json.Unmarshal(line, &request); err != nil {
			if err = reply(port, nil, agentError("GenericError", "JSON parse error")); err != nil {
				return err
			}

			continue
		}

		prefix, answer, after := a.answer(request)
		if answer != nil {
			if len(request.ID) > 0 {
				answer["id"] = request.ID
			}

			if err := reply(port, prefix, answer); err != nil {
				return err
			}
		}

		if after != nil {
			after()
		}
	}

	return lines.Err()
}

func reply(port io.Writer, prefix []byte, answer map[string]any) error {
	data, err := json.Marshal(answer)
	if err != nil {
		return err
	}

	_, err = port.Write(append(append(prefix, data...), '\n'))

	return err
}

func agentError(class, text string) map[string]any {
	return map[string]any{"error": map[string]any{"class": class, "desc": text}}
}

var agentCommands = []string{
	"guest-sync", "guest-sync-delimited", "guest-ping", "guest-info", "guest-get-host-name", "guest-get-osinfo",
	"guest-network-get-interfaces", "guest-shutdown",
}

// answer returns the reply, with what goes before it, and what is to be done after it. guest-shutdown has no reply.
func (a *agent) answer(request agentRequest) (prefix []byte, answer map[string]any, after func()) {
	var arguments struct {
		ID   json.RawMessage `json:"id"`
		Mode string          `json:"mode"`
	}

	if len(request.Arguments) > 0 {
		if err := json.Unmarshal(request.Arguments, &arguments); err != nil {
			return nil, agentError("GenericError", "invalid arguments of "+request.Execute), nil
		}
	}

	result := any(map[string]any{})

	switch request.Execute {
	case "guest-sync-delimited":
		prefix, result = []byte{0xff}, arguments.ID
	case "guest-sync":
		result = arguments.ID
	case "guest-ping":
	case "guest-info":
		var list []map[string]any
		for _, name := range agentCommands {
			list = append(list, map[string]any{"name": name, "enabled": true, "success-response": name != "guest-shutdown"})
		}

		result = map[string]any{"version": a.version, "supported_commands": list}
	case "guest-get-host-name":
		hostname, err := os.Hostname()
		if err != nil {
			return nil, agentError("GenericError", err.Error()), nil
		}

		result = map[string]any{"host-name": hostname}
	case "guest-get-osinfo":
		result = map[string]any{"id": "talos", "name": "Talos", "version-id": a.version, "pretty-name": "simulated Talos (" + a.version + ")"}
	case "guest-network-get-interfaces":
		list, err := agentInterfaces()
		if err != nil {
			return nil, agentError("GenericError", err.Error()), nil
		}

		result = list
	case "guest-shutdown":
		switch arguments.Mode {
		case "reboot":
			return nil, nil, a.reboot
		case "", "powerdown", "halt":
			return nil, nil, a.powerOff
		default:
			return nil, agentError("GenericError", "mode is invalid (valid values are: halt|powerdown|reboot)"), nil
		}
	default:
		return nil, agentError("CommandNotFound", "The command "+request.Execute+" has not been found"), nil
	}

	return prefix, map[string]any{"return": result}, nil
}

func agentInterfaces() ([]map[string]any, error) {
	links, err := net.Interfaces()
	if err != nil {
		return nil, err
	}

	list := []map[string]any{}

	for _, link := range links {
		entry := map[string]any{"name": link.Name}
		if len(link.HardwareAddr) > 0 {
			entry["hardware-address"] = link.HardwareAddr.String()
		}

		assigned, err := link.Addrs()
		if err != nil {
			return nil, err
		}

		var addresses []map[string]any

		for _, address := range assigned {
			prefix, ok := address.(*net.IPNet)
			if !ok {
				return nil, errors.New("an address without prefix")
			}

			kind := "ipv6"
			if prefix.IP.To4() != nil {
				kind = "ipv4"
			}

			bits, _ := prefix.Mask.Size()
			addresses = append(addresses, map[string]any{"ip-address": prefix.IP.String(), "ip-address-type": kind, "prefix": bits})
		}

		if addresses != nil {
			entry["ip-addresses"] = addresses
		}

		list = append(list, entry)
	}

	return list, nil
}

// readLine returns the trimmed content of a small file, or "" when there is none.
func readLine(name string) string {
	data, err := os.ReadFile(name)
	if err != nil {
		return ""
	}

	return strings.TrimSpace(strings.TrimRight(string(data), "\x00"))
}
