// Package machine says what a machine on an Oxide rack is: class data, names, ownership marks, and the calls' bodies that follow from
// them. It calls nothing. Package provider is its user.
package machine
