package bootasset_test

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/siderolabs/image-factory/pkg/schematic"
	"github.com/siderolabs/omni/client/api/omni/management"
	"github.com/siderolabs/omni/client/api/omni/specs"
	"github.com/siderolabs/omni/client/pkg/infra/provision"
	"github.com/siderolabs/omni/client/pkg/omni/resources/infra"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/zap"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/omni-infra/omni-infra-providers/shared/bootasset"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

var update = flag.Bool("update", false, "rewrite the golden files")

// plainSchematic is the id that every factory gives to the schematic without customization.
const plainSchematic = "376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba"

func TestURLFollowsTheSpec(t *testing.T) {
	tests := []struct {
		name, extension, want string
		spec                  driver.ImageSpec
	}{
		{"default", "", "nocloud-amd64.raw.xz", driver.ImageSpec{Platform: "nocloud"}},
		{"other packing", "raw.zst", "nocloud-amd64.raw.zst", driver.ImageSpec{Platform: "nocloud", Format: "raw"}},
		{"other architecture", "", "nocloud-arm64.raw.xz", driver.ImageSpec{Platform: "nocloud", Arch: driver.ARM64}},
		{"other format", "raw.zst", "metal-amd64.qcow2", driver.ImageSpec{Platform: "metal", Format: "qcow2"}},
		{"secure boot", "", "nocloud-amd64-secureboot.raw.xz", driver.ImageSpec{Platform: "nocloud", SecureBoot: true}},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &factory{}

			image, err := f.resolver(t, func(c *bootasset.Config) {
				c.Factory = base + "/mirror/"
				c.Schematics = fixed(plainSchematic)
				c.RawExtension = tt.extension
			}).Resolve(t.Context(), request(nil), tt.spec)

			require.NoError(t, err)
			assert.Equal(t, base+"/mirror/image/"+plainSchematic+"/v1.13.5/"+tt.want, image.URL())
			assert.Empty(t, f.images(), "resolving downloads nothing")
		})
	}
}

func TestKeyDiffersWithEverythingThatChangesTheImage(t *testing.T) {
	key := func(factoryURL, version string, spec driver.ImageSpec, change func(*specs.MachineRequestSpec)) string {
		image, err := (&factory{}).resolver(t, func(c *bootasset.Config) { c.Factory = factoryURL }).
			Resolve(t.Context(), request(func(s *specs.MachineRequestSpec) {
				s.TalosVersion = version
				if change != nil {
					change(s)
				}
			}), spec)
		require.NoError(t, err)

		return image.Key()
	}

	plain := driver.ImageSpec{Platform: "nocloud"}
	keys := []string{
		key(base, "1.13.5", plain, nil),
		key("https://mirror.example.org", "1.13.5", plain, func(*specs.MachineRequestSpec) {}),
		key(base, "1.13.6", plain, nil),
		key(base, "1.14.0-alpha.1", plain, nil),
		key(base, "1.13.5", driver.ImageSpec{Platform: "metal"}, nil),
		key(base, "1.13.5", driver.ImageSpec{Platform: "nocloud", Arch: driver.ARM64}, nil),
		key(base, "1.13.5", driver.ImageSpec{Platform: "nocloud", Format: "qcow2"}, nil),
		key(base, "1.13.5", driver.ImageSpec{Platform: "nocloud", SecureBoot: true}, nil),
		key(base, "1.13.5", plain, func(s *specs.MachineRequestSpec) { s.KernelArgs = []string{"a"} }),
	}

	seen := map[string]bool{}

	for _, k := range keys {
		assert.Regexp(t, regexp.MustCompile(`^[a-z0-9][a-z0-9.-]*$`), k, "fit for names of files and objects")
		assert.False(t, seen[k], "%s is the key of two images", k)
		seen[k] = true
	}

	assert.Equal(t, keys[0], key(base+"/", "v1.13.5", driver.ImageSpec{Platform: "nocloud", Arch: driver.AMD64, Format: "raw"}, nil))
}

func TestVersionIsNormalized(t *testing.T) {
	for given, want := range map[string]string{"1.13.5": "v1.13.5", "v1.13.5": "v1.13.5", "v1.14.0-alpha.1": "v1.14.0-alpha.1"} {
		got, err := bootasset.NormalizeVersion(given)
		require.NoError(t, err)
		assert.Equal(t, want, got)
	}

	for _, given := range []string{"", "latest", "1.x", "v1.13.5+build", "1.13.5/../..", "-1.0.0"} {
		_, err := bootasset.NormalizeVersion(given)
		require.ErrorContains(t, err, fmt.Sprintf("talos version %q is not valid: want a version like v1.13.5", given))
		assert.Equal(t, driver.KindTerminal, driver.KindOf(err))
	}
}

func TestSpecThatNoFactoryServesIsRefused(t *testing.T) {
	for want, spec := range map[string]driver.ImageSpec{
		`image platform ""`:          {},
		`image platform "../x"`:      {Platform: "../x"},
		`image architecture "riscv"`: {Platform: "nocloud", Arch: "riscv"},
		`image format "vmdk"`:        {Platform: "nocloud", Format: "vmdk"},
	} {
		_, err := (&factory{}).resolver(t, nil).Resolve(t.Context(), request(nil), spec)
		require.ErrorContains(t, err, want)
		assert.Equal(t, driver.KindTerminal, driver.KindOf(err))
	}
}

func TestConfigThatCannotWorkIsRefused(t *testing.T) {
	for want, config := range map[string]bootasset.Config{
		"raw extension":               {RawExtension: "raw.rar"},
		"user and password":           {Factory: "https://user:geheim@factory.example.org"},
		"want https://HOST":           {Factory: "factory.example.org"},
		"first path segment":          {Factory: "1:geheim"},
		`"ftp://factory.example.org"`: {Factory: "ftp://factory.example.org"},
	} {
		_, err := bootasset.New(config)
		require.ErrorContains(t, err, want)
		assert.NotContains(t, err.Error(), "geheim")
	}
}

// everything is a request that uses all that a schematic can say.
func everything(s *specs.MachineRequestSpec) {
	s.KernelArgs = []string{"net.ifnames=0", "console=ttyS0", "net.ifnames=0"}
	s.Extensions = []string{"siderolabs/qemu-guest-agent", "siderolabs/iscsi-tools"}
	s.MetaValues = []*specs.MetaValue{{Key: 12, Value: "b"}, {Key: 10, Value: "a"}}
	s.Overlay = &specs.Overlay{Name: "rpi_generic", Image: "siderolabs/sbc-raspberrypi"}
}

func TestSchematicIsSortedAndWithoutDoubles(t *testing.T) {
	f := &factory{}
	r := request(everything)
	before := r.TypedSpec().Value.CloneVT()

	_, err := f.resolver(t, nil).Resolve(t.Context(), r, driver.ImageSpec{
		Platform:   "nocloud",
		Extensions: []string{"siderolabs/iscsi-tools", "siderolabs/amd-ucode"},
		KernelArgs: []string{"-console", "console=ttyS1", "console=ttyS0"},
	})
	require.NoError(t, err)
	require.Len(t, f.posted(), 1)

	const golden = "testdata/schematic.yaml"

	if *update {
		require.NoError(t, os.WriteFile(golden, []byte(f.posted()[0]), 0o644))
	}

	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	assert.Equal(t, string(want), f.posted()[0])
	assert.True(t, before.EqualVT(r.TypedSpec().Value), "the request is not changed")
}

// official captures the schematic that the official provider library makes.
type official struct{ got schematic.Schematic }

func (o *official) EnsureSchematic(_ context.Context, s schematic.Schematic) (string, error) {
	o.got = s

	return s.ID()
}

func TestSchematicEqualsTheOfficialLibrarys(t *testing.T) {
	tests := map[string]func(*specs.MachineRequestSpec){
		"plain":       func(*specs.MachineRequestSpec) {},
		"extensions":  func(s *specs.MachineRequestSpec) { s.Extensions = []string{"siderolabs/b", "siderolabs/a"} },
		"kernel args": func(s *specs.MachineRequestSpec) { s.KernelArgs = []string{"b=1", "a"} },
		"META in order": func(s *specs.MachineRequestSpec) {
			s.MetaValues = []*specs.MetaValue{{Key: 10, Value: "a"}, {Key: 12, Value: "b"}}
		},
		"overlay": func(s *specs.MachineRequestSpec) { s.Overlay = &specs.Overlay{Name: "n", Image: "i"} },
	}

	for name, change := range tests {
		t.Run(name, func(t *testing.T) {
			f := &factory{}

			_, err := f.resolver(t, nil).Resolve(t.Context(), request(change), driver.ImageSpec{
				Platform: "nocloud", Extensions: []string{"siderolabs/c"}, KernelArgs: []string{"-console", "console=ttyS0"},
			})
			require.NoError(t, err)

			var theirs official

			c := provision.NewContext[*infra.MachineRequest](request(change), infra.NewMachineRequestStatus("x"), nil, provision.ConnectionParams{}, &theirs, nil)

			_, err = c.GenerateSchematicID(t.Context(), zap.NewNop(), provision.WithoutConnectionParams(),
				provision.WithExtraExtensions("siderolabs/c"), provision.WithExtraKernelArgs("-console", "console=ttyS0"))
			require.NoError(t, err)

			want, err := theirs.got.Marshal()
			require.NoError(t, err)
			assert.Equal(t, string(want), f.posted()[0])
		})
	}

	image, err := (&factory{}).resolver(t, nil).Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
	require.NoError(t, err)
	assert.Contains(t, image.URL(), plainSchematic)
}

func TestJoinConfigurationNeverEntersASchematic(t *testing.T) {
	const token = "v2-geheim"

	tests := map[string]struct {
		change func(*specs.MachineRequestSpec)
		spec   []string
	}{
		"kernel argument siderolink.api": {change: func(s *specs.MachineRequestSpec) {
			s.KernelArgs = []string{"siderolink.api=grpc://omni:8090?jointoken=" + token}
		}},
		"kernel argument Siderolink.API": {spec: []string{"Siderolink.API=" + token}},
		"kernel argument talos.config":   {spec: []string{"talos.config=http://h/?joinToken=" + token}},
		"META value 0xa": {change: func(s *specs.MachineRequestSpec) {
			s.MetaValues = []*specs.MetaValue{{Key: 10, Value: "jointoken: " + token}}
		}},
		"META key 0x100 is not valid": {change: func(s *specs.MachineRequestSpec) { s.MetaValues = []*specs.MetaValue{{Key: 256}} }},
		"META key 0xa has two different values": {change: func(s *specs.MachineRequestSpec) {
			s.MetaValues = []*specs.MetaValue{{Key: 10, Value: "a"}, {Key: 10, Value: "b"}}
		}},
	}

	for want, tt := range tests {
		t.Run(want, func(t *testing.T) {
			f := &factory{}

			_, err := f.resolver(t, nil).Resolve(t.Context(), request(tt.change), driver.ImageSpec{Platform: "nocloud", KernelArgs: tt.spec})

			require.ErrorContains(t, err, want)
			assert.NotContains(t, err.Error(), token)
			assert.Equal(t, driver.KindTerminal, driver.KindOf(err))
			assert.Empty(t, f.posted())
		})
	}
}

// schematics is a Schematics from a function.
type schematics func(ctx context.Context, raw []byte) (string, error)

func (s schematics) EnsureSchematic(ctx context.Context, raw []byte) (string, error) {
	return s(ctx, raw)
}

func fixed(id string) schematics {
	return func(context.Context, []byte) (string, error) { return id, nil }
}

func TestTwentyMachinesShareOneSchematicCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		resolver := (&factory{}).resolver(t, func(c *bootasset.Config) {
			c.Schematics = schematics(func(ctx context.Context, _ []byte) (string, error) {
				calls++

				return plainSchematic, sleep(ctx, 10*time.Second)
			})
		})

		var wg sync.WaitGroup

		for i := range 20 {
			wg.Go(func() {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				defer cancel()

				// The first one to come gives up while the call is under way.
				if i == 0 {
					ctx, cancel = context.WithTimeout(t.Context(), time.Second)
					defer cancel()
				} else {
					time.Sleep(time.Millisecond)
				}

				_, err := resolver.Resolve(ctx, request(nil), driver.ImageSpec{Platform: "nocloud"})

				if i == 0 {
					assert.ErrorIs(t, err, context.DeadlineExceeded)
				} else {
					assert.NoError(t, err)
				}
			})
		}

		wg.Wait()
		assert.Equal(t, 1, calls)
	})
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

func TestFailedSchematicCallIsNotRemembered(t *testing.T) {
	calls := 0
	resolver := (&factory{}).resolver(t, func(c *bootasset.Config) {
		c.Schematics = schematics(func(context.Context, []byte) (string, error) {
			if calls++; calls == 1 {
				return "", errors.New("factory is down")
			}

			return plainSchematic, nil
		})
	})

	for _, want := range []string{"make the image's schematic: factory is down", "", ""} {
		_, err := resolver.Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
		if want == "" {
			require.NoError(t, err)
		} else {
			require.EqualError(t, err, want)
		}
	}

	assert.Equal(t, 2, calls)
}

func TestSchematicCallEndsWhenNobodyAnswers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		resolver := (&factory{}).resolver(t, func(c *bootasset.Config) {
			c.Schematics = schematics(func(ctx context.Context, _ []byte) (string, error) {
				<-ctx.Done()

				return "", context.Cause(ctx)
			})
		})

		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()

		_, err := resolver.Resolve(ctx, request(nil), driver.ImageSpec{Platform: "nocloud"})
		require.ErrorContains(t, err, "no answer within 1m0s")
	})
}

func TestStrangeSchematicIDIsRefused(t *testing.T) {
	for _, id := range []string{"", "../../etc/passwd", strings.Repeat("A", 64), plainSchematic + "0"} {
		resolver := (&factory{}).resolver(t, func(c *bootasset.Config) { c.Schematics = fixed(id) })

		_, err := resolver.Resolve(t.Context(), request(nil), driver.ImageSpec{Platform: "nocloud"})
		require.ErrorContains(t, err, "want 64 hexadecimal digits")
	}
}

func TestFactorysAnswersToASchematicHaveTheirKind(t *testing.T) {
	tests := []struct {
		name   string
		answer *answer
		want   string
		kind   driver.Kind
		pause  time.Duration
	}{
		{"invalid", &answer{400, nil, "unknown field \"x\"\n"}, `400 Bad Request: unknown field "x"`, driver.KindTerminal, 0},
		{"throttled", &answer{429, http.Header{"Retry-After": {"20"}}, ""}, "429 Too Many Requests", driver.KindTransient, 20 * time.Second},
		{"down", &answer{502, nil, "<html>\n<b>bad</b>"}, "502 Bad Gateway: <html> <b>bad</b>", driver.KindTransient, 0},
		{"not JSON", &answer{200, nil, "<html>"}, "read the answer of POST " + base + "/schematics", driver.KindTransient, 0},
	}

	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := &factory{answer: func(*http.Request) *answer { return tt.answer }}

			s, err := bootasset.NewFactorySchematics(base, &http.Client{Transport: f})
			require.NoError(t, err)

			_, err = s.EnsureSchematic(t.Context(), []byte("customization: {}\n"))

			require.ErrorContains(t, err, tt.want)
			assert.Equal(t, tt.kind, driver.KindOf(err))
			assert.Equal(t, tt.pause, driver.PauseOf(err))
		})
	}

	f := &factory{}

	s, err := bootasset.NewFactorySchematics(base, &http.Client{Transport: f})
	require.NoError(t, err)

	id, err := s.EnsureSchematic(t.Context(), []byte("customization: {}\n"))
	require.NoError(t, err)
	assert.Equal(t, plainSchematic, id)
	assert.Equal(t, "application/yaml", f.requests[0].Header.Get("Content-Type"))
}

// omni answers CreateSchematicFromRaw.
type omni struct{ err error }

func (o omni) CreateSchematicFromRaw(context.Context, []byte) (*management.CreateSchematicResponse, error) {
	return &management.CreateSchematicResponse{SchematicId: plainSchematic}, o.err
}

func TestOmnisAnswersToASchematicHaveTheirKind(t *testing.T) {
	id, err := bootasset.OmniSchematics{Management: omni{}}.EnsureSchematic(t.Context(), nil)
	require.NoError(t, err)
	assert.Equal(t, plainSchematic, id)

	for code, want := range map[codes.Code]driver.Kind{
		codes.InvalidArgument: driver.KindTerminal, codes.ResourceExhausted: driver.KindTransient,
		codes.Unknown: driver.KindTransient, codes.Unavailable: driver.KindTransient, codes.Unimplemented: driver.KindTransient,
	} {
		_, err = bootasset.OmniSchematics{Management: omni{status.Error(code, "why")}}.EnsureSchematic(t.Context(), nil)
		require.ErrorContains(t, err, "create schematic through Omni: ")
		require.ErrorContains(t, err, "why")
		assert.Equal(t, want, driver.KindOf(err), code)
	}
}

func ExampleResolver() {
	resolver, err := bootasset.New(bootasset.Config{
		HTTP: &http.Client{Transport: &factory{image: []byte("disk")}},
	})
	if err != nil {
		fmt.Println(err)

		return
	}

	request := infra.NewMachineRequest("talos-default-7xk2p")
	request.TypedSpec().Value.TalosVersion = "1.13.5"

	image, err := resolver.Resolve(context.Background(), request, driver.ImageSpec{Platform: "nocloud"})
	if err != nil {
		fmt.Println(err)

		return
	}

	fmt.Println(image.URL())
	// Output:
	// https://factory.talos.dev/image/376567988ad370138ad8b2698212367b8edcb69b5fd68c80be1f2ec7d603b4ba/v1.13.5/nocloud-amd64.raw.xz
}
