//go:build real

package provider

import (
	"bytes"
	"io"
	"slices"
)

// The guests of some tests are a boot sector: code for the firmware's 16-bit mode, which is loaded to 0x7c00 and gets the disk's number
// in DL. They do one thing that a machine without a guest cannot.
var (
	halt = []byte{0xf4, 0xeb, 0xfd} // hlt; jmp to it

	// fillsDisk writes to its disk, from the first MiB on, without end.
	fillsDisk = []byte{
		0x31, 0xc0, // xor ax, ax
		0x8e, 0xd8, // mov ds, ax
		0xbe, 0x20, 0x7c, // mov si, 0x7c20
		0xb8, 0x00, 0x43, // mov ax, 0x4300: write what SI points to
		0xcd, 0x13, // int 0x13
		0x66, 0x83, 0x44, 0x08, 0x40, // add dword [si+8], 64
		0xeb, 0xf4, // jmp to the write
		0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
		0x10, 0, 64, 0, 0x00, 0x7c, 0, 0, 0x00, 0x08, 0, 0, 0, 0, 0, 0, // at 0x7c20: 64 sectors from memory at 0x7c00 to sector 2048
	}

	// sleeps suspends to memory, which is sleep type 1 in the power management register of the q35 board.
	sleeps = slices.Concat(outWord(0x604, 0x2400), halt)
	// switchesOff switches the machine off: sleep type 0.
	switchesOff = slices.Concat(outWord(0x604, 0x2000), halt)
	// panics tells a panic device that the guest has crashed.
	panics = slices.Concat([]byte{0xb0, 0x01, 0xba, 0x05, 0x05, 0xee}, halt) // mov al, 1; mov dx, 0x505; out dx, al
)

func outWord(port, value uint16) []byte {
	return []byte{
		0xb8, byte(value), byte(value >> 8), // mov ax, value
		0xba, byte(port), byte(port >> 8), // mov dx, port
		0xef, // out dx, ax
	}
}

// booting is an image that boots the code.
func booting(code []byte) *testImage {
	sector := make([]byte, 512)
	copy(sector, code)
	copy(sector[510:], []byte{0x55, 0xaa})

	return &testImage{open: func(io.Reader) io.Reader { return bytes.NewReader(append(sector, make([]byte, 1<<20)...)) }}
}
