package controlplane

import (
	"os/exec"
	"syscall"
)

// endWithUs makes the kernel kill the program when this process dies, whatever it dies of.
func endWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }
