// Package machine says what a machine on libvirt is: its class data, the names and the mark of its objects, and the documents that
// describe it to libvirt, for what a host can do. It is pure: it calls nothing. The driver and the packages below it import it.
package machine
