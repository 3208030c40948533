//go:build linux

package guest

import (
	"encoding/binary"
	"io"
	"log/slog"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// The evdev event of a power button (linux/input-event-codes.h).
const (
	eventSize = 24
	eventKey  = 1
	keyPower  = 116
)

// watchPowerButton calls pressed for each press of any power button.
func watchPowerButton(log *slog.Logger, pressed func()) {
	devices, _ := filepath.Glob("/dev/input/event*")
	log.Info("watching the power button", "devices", devices)

	for _, device := range devices {
		go func() {
			file, err := os.Open(device)
			if err != nil {
				log.Warn("power button", "error", err)

				return
			}
			defer file.Close() //nolint:errcheck // Only read from.

			for event := make([]byte, eventSize); ; {
				if _, err = io.ReadFull(file, event); err != nil {
					log.Warn("power button", "error", err)

					return
				}

				if isPowerPress(event) {
					log.Info("power button pressed")
					pressed()
				}
			}
		}()
	}
}

// isPowerPress reads a struct input_event of a 64-bit little-endian machine.
func isPowerPress(event []byte) bool {
	return binary.LittleEndian.Uint16(event[16:]) == eventKey &&
		binary.LittleEndian.Uint16(event[18:]) == keyPower &&
		binary.LittleEndian.Uint32(event[20:]) == 1
}

// leave ends the guest; it does not return unless the kernel refuses.
func leave(reboot bool) error {
	unix.Sync()

	if reboot {
		return unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART)
	}

	return unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
}
