package main

import (
	"context"
	"errors"
	"io"

	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// images names the boot images, which the cloud in memory takes as fetched.
type images struct{}

type image string

func (images) Resolve(_ context.Context, request *infra.MachineRequest, spec driver.ImageSpec) (driver.Image, error) {
	return image(spec.Platform + "-" + string(spec.Arch) + "-" + request.TypedSpec().Value.TalosVersion), nil
}

func (i image) Key() string { return string(i) }
func (i image) URL() string { return "https://factory.example/" + string(i) }
func (i image) Open(context.Context) (io.ReadCloser, error) {
	return nil, errors.New("the cloud fetches the image itself")
}
