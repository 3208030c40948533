package kube

import (
	"context"
	"fmt"
	"sync"
)

// Mirrors are the mirrors of one API server, of which several controllers share one for each kind. They are all made before Run.
type Mirrors struct {
	client *Client
	all    map[Kind]interface{ Run(ctx context.Context) }
}

// NewMirrors returns none yet.
func NewMirrors(client *Client) *Mirrors {
	return &Mirrors{client: client, all: map[Kind]interface{ Run(ctx context.Context) }{}}
}

// Client returns the client that they are read with.
func (m *Mirrors) Client() *Client { return m.client }

// MirrorOf returns the mirror of a kind. All who share it read its objects as the same type.
func MirrorOf[T any, P Object[T]](m *Mirrors, kind Kind) (*Mirror[T, P], error) {
	if known, ok := m.all[kind]; ok {
		mirror, ok := known.(*Mirror[T, P])
		if !ok {
			return nil, fmt.Errorf("share mirror of %s: it is a %T", kind.Resource, known)
		}

		return mirror, nil
	}

	mirror, err := NewMirror[T, P](m.client, kind)
	if err != nil {
		return nil, err
	}

	m.all[kind] = mirror

	return mirror, nil
}

// Run follows the server until ctx ends.
func (m *Mirrors) Run(ctx context.Context) {
	var work sync.WaitGroup

	for _, mirror := range m.all {
		work.Go(func() { mirror.Run(ctx) })
	}

	work.Wait()
}
