// Package libvirt is a simulated libvirt hypervisor: domains, storage pools with their volumes, networks and devices behind types
// that mirror libvirt.org/go/libvirt method by method, with libvirt's numbers and words in their errors, libvirt's rules and the
// order of its events. Whoever knows the bindings knows it. It has no sockets and takes its time from package time, so that it
// runs on the fake clock of testing/synctest; libvirt itself is not needed.
//
// A Hypervisor is one host. Client stands for a process that uses it, Connect for a connection to its daemon. What happens at the
// host without libvirt, from a machine switched off at the console to a daemon that is restarted, are methods of Hypervisor. Calls
// suffer the faults of its ledger, in libvirt's words.
//
// The tests run the same scripts on the simulation and on a real libvirtd, and compare what was said. README.md says what is not
// modelled.
package libvirt
