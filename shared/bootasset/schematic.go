package bootasset

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/siderolabs/image-factory/pkg/schematic"
	"github.com/siderolabs/omni/client/api/omni/specs"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// schematicFor returns the schematic, in the bytes that make its id, for what the request and the spec ask for. It reads the
// request as the official provider library does: the same request gives the same schematic there and here.
//
// A schematic never tells a machine how to join: it would be one image per machine, and the factory shows it to everyone.
func schematicFor(request *specs.MachineRequestSpec, spec driver.ImageSpec) ([]byte, error) {
	// The order of kernel arguments can matter. The request's are put in order, as its author did not choose one that lasts;
	// the driver's come last and as they are.
	kernelArgs := sorted(request.GetKernelArgs())

	for _, arg := range spec.KernelArgs {
		if !slices.Contains(kernelArgs, arg) {
			kernelArgs = append(kernelArgs, arg)
		}
	}

	for _, arg := range kernelArgs {
		if tellsHowToJoin(arg) {
			name, _, _ := strings.Cut(arg, "=")

			return nil, driver.Terminalf("kernel argument %s tells a machine how to join Omni: that cannot be part of an image; remove it from the request", name)
		}
	}

	meta, err := metaValues(request.GetMetaValues())
	if err != nil {
		return nil, err
	}

	s := schematic.Schematic{
		Customization: schematic.Customization{
			ExtraKernelArgs: kernelArgs,
			Meta:            meta,
			SystemExtensions: schematic.SystemExtensions{
				OfficialExtensions: sorted(slices.Concat(request.GetExtensions(), spec.Extensions)),
			},
		},
	}

	if overlay := request.GetOverlay(); overlay != nil {
		s.Overlay = schematic.Overlay{Name: overlay.GetName(), Image: overlay.GetImage()}
	}

	raw, err := s.Marshal()
	if err != nil {
		return nil, fmt.Errorf("encode schematic: %w", err)
	}

	return raw, nil
}

func metaValues(values []*specs.MetaValue) ([]schematic.MetaValue, error) {
	var meta []schematic.MetaValue

	for _, v := range values {
		switch {
		case v.GetKey() > 0xff:
			return nil, driver.Terminalf("META key %#x is not valid: want 0x0 to 0xff", v.GetKey())
		case tellsHowToJoin(v.GetValue()):
			return nil, driver.Terminalf("META value %#x tells a machine how to join Omni: that cannot be part of an image; remove it from the request", v.GetKey())
		}

		meta = append(meta, schematic.MetaValue{Key: uint8(v.GetKey()), Value: v.GetValue()})
	}

	slices.SortStableFunc(meta, func(a, b schematic.MetaValue) int { return cmp.Compare(a.Key, b.Key) })
	meta = slices.Compact(meta)

	for i := 1; i < len(meta); i++ {
		if meta[i-1].Key == meta[i].Key {
			return nil, driver.Terminalf("META key %#x has two different values in the request; give one", meta[i].Key)
		}
	}

	return meta, nil
}

// tellsHowToJoin finds Omni's address and join token, whichever way they are spelt.
func tellsHowToJoin(s string) bool {
	s = strings.ToLower(s)

	return strings.Contains(s, "siderolink.api") || strings.Contains(s, "jointoken")
}

// sorted returns the values in order and without doubles, and leaves its argument alone.
func sorted(values []string) []string {
	return slices.Compact(slices.Sorted(slices.Values(values)))
}
