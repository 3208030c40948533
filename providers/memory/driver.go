// Package memory is the reference provider: a complete driver for the smallest of clouds, the one in sim/memory. Read it before
// writing a provider; each file shows one part of the contract in package driver:
//
//	classdata.go  what a machine class may say, and Plan
//	mark.go       how our objects are told from everybody else's
//	phases.go     from nothing to a running machine, each step safe to repeat
//	find.go       Find and List
//	remove.go     from anything to nothing
//	power.go      the optional parts: PowerSwitch and Watcher
//	errors.go     the one place where the cloud's errors get their kind
//	zones.go      several clouds as places of one provider: Placer
package memory

import (
	"context"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
	cloud "github.com/omni-infra/omni-infra-providers/sim/memory"
)

// Driver makes machines in the cloud in memory. It keeps nothing that a restart would lose.
type Driver struct {
	client *cloud.Client
	// importing holds a token while one goroutine looks for an image and has it imported.
	importing chan struct{}
}

var (
	_ driver.Driver      = (*Driver)(nil)
	_ driver.PowerSwitch = (*Driver)(nil)
	_ driver.Watcher     = (*Driver)(nil)
)

// New returns the driver of the cloud that client is connected to. From then on the client keeps the quiet times of the cloud,
// in methods of the driver that make several calls too.
func New(client *cloud.Client) *Driver {
	client.Before = driver.AwaitTurn

	return &Driver{client: client, importing: make(chan struct{}, 1)}
}

// Check says whether the cloud answers.
func (d *Driver) Check(ctx context.Context) error { return classify(d.client.Ping(ctx)) }
