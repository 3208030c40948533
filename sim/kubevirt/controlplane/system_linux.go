package controlplane

import (
	"os"
	"os/exec"
	"syscall"
)

// memory is where this system has a folder in memory.
const memory = "/dev/shm"

// locks says that lock tells what is left from what is in use.
const locks = true

// endWithUs makes the kernel kill the program when the thread that starts it ends, whatever it ends of.
func endWithUs(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} }

// room returns how many bytes may be written below a folder, none if it is not there.
func room(folder string) uint64 {
	var stat syscall.Statfs_t
	if syscall.Statfs(folder, &stat) != nil {
		return 0
	}

	return stat.Bavail * uint64(stat.Bsize) //nolint:gosec // a size of blocks
}

// lock locks a folder until it is closed or its process ends, and reports whether nobody else has locked it.
func lock(folder *os.File) bool {
	return syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil //nolint:gosec // a file descriptor
}
