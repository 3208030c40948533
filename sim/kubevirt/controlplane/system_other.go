//go:build !linux

package controlplane

import (
	"os"
	"os/exec"
)

// memory is where other systems would have a folder in memory.
const memory = ""

// locks says that what a killed process leaves has to be removed by hand.
const locks = false

// endWithUs does nothing here: a program that outlives this process has to be ended by hand.
func endWithUs(*exec.Cmd) {}

// room knows of none.
func room(string) uint64 { return 0 }

// lock does nothing here.
func lock(*os.File) bool { return true }
