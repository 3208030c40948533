// Package talos is a simulated Talos machine: it boots, finds its join config where a cloud put it, joins Omni with the real
// SideroLink call, reports, obeys, reboots and powers off. Clouds in sim and conformance run it as a goroutine, also on the
// fake clock of testing/synctest; cmd/talos-init runs the same code as the init of a Linux guest.
//
// Where Talos looks, and in which order, was read in the source of Talos v1.14 (MPL-2.0): its acquire controller, its nocloud
// platform and its siderolink controllers. Not modelled: the Talos API, clusters, installation and upgrades, talos.config with
// a URL, and WireGuard itself, whose place the packets of sim/talosapi take.
package talos
