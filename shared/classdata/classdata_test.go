package classdata_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// placement is embedded, so its field is one of machine's.
type placement struct {
	Host string `json:"host" doc:"Where to run."`
}

type disk struct {
	Size int    `json:"size" doc:"GiB." min:"1" max:"65536" required:"true"`
	Bus  string `json:"bus" doc:"Disk bus." enum:"virtio,sata,nvme" default:"virtio"`
}

type network struct {
	Name    string     `json:"name" doc:"Network." default:"default"`
	Gateway netip.Addr `json:"gateway" doc:"Gateway address."`
}

type machine struct {
	placement

	Cores    int       `json:"cores" title:"CPU cores" doc:"Number of cores." default:"2" min:"1" max:"512"`
	Memory   uint64    `json:"memory" title:"Memory" doc:"MiB." required:"true" min:"2048"`
	Ratio    float64   `json:"ratio" doc:"CPU share." default:"0.5" min:"0" max:"1"`
	Pool     string    `json:"storage_pool" doc:"Storage pool." default:"default" pattern:"^[a-z][a-z0-9-]*$" max:"20"`
	Autoboot *bool     `json:"autoboot" doc:"Start with the host."`
	Sector   int       `json:"sector_size" doc:"Bytes." enum:"512,4096" default:"512"`
	Priority int8      `json:"priority" doc:"Scheduling."`
	Groups   []string  `json:"groups" doc:"Groups." pattern:"^[a-z]+$" max:"3"`
	Disks    []disk    `json:"disks" doc:"More disks." max:"4"`
	Networks []network `json:"networks" doc:"Interfaces." min:"1" default:"[{name: lan}, {}]"`
	Network  network   `json:"network" doc:"First interface."`
	Boot     *disk     `json:"boot" doc:"Boot disk."`

	Derived string `json:"-"`
}

func (m machine) Validate() error {
	if m.Cores > 4 && m.Memory < 4096 {
		return errors.Join(
			fmt.Errorf("cores: %d cores need at least 4096 MiB of memory", m.Cores),
			errors.New("memory: too little for that many cores"),
		)
	}

	return nil
}

type optional struct {
	Cores int `json:"cores" doc:"Cores." default:"2"`
}

func TestDefaultsFillWhatIsAbsent(t *testing.T) {
	got, err := classdata.Decode[machine]("memory: 4096\ndisks: [{size: 10}]\nnetwork: {gateway: 10.0.0.1}")
	require.NoError(t, err)

	assert.Equal(t, machine{
		Cores: 2, Memory: 4096, Ratio: 0.5, Pool: "default", Sector: 512,
		Disks:    []disk{{Size: 10, Bus: "virtio"}},
		Networks: []network{{Name: "lan"}, {Name: "default"}},
		Network:  network{Name: "default", Gateway: netip.MustParseAddr("10.0.0.1")},
	}, got)
}

func TestJSONAndYAMLMeanTheSame(t *testing.T) {
	fromYAML, err := classdata.Decode[machine]("host: a\nmemory: 4096\nautoboot: false\nboot:\n  size: 3\n")
	require.NoError(t, err)

	fromJSON, err := classdata.Decode[machine]("{\n\t\"host\": \"a\",\n\t\"memory\": 4096,\n\t\"autoboot\": false,\n\t\"boot\": {\"size\": 3}\n}")
	require.NoError(t, err)

	assert.Equal(t, fromYAML, fromJSON)
	assert.Equal(t, "a", fromYAML.Host)
	assert.False(t, *fromYAML.Autoboot)
	assert.Equal(t, &disk{Size: 3, Bus: "virtio"}, fromYAML.Boot)
}

func TestEmptyDocumentIsAllDefaults(t *testing.T) {
	for _, data := range []string{"", "  \n", "# nothing\n", "{}", "null", "---\n"} {
		got, err := classdata.Decode[optional](data)
		require.NoError(t, err, "%q", data)
		assert.Equal(t, optional{Cores: 2}, got)

		_, err = classdata.Decode[machine](data)
		require.ErrorContains(t, err, "memory: required, but not given; want a whole number of at least 2048", "%q", data)
	}
}

// refused holds documents that break one rule each, with the whole text of the error.
var refused = []struct{ name, data, want string }{
	{"misspelt key", "memroy: 4096\nmemory: 4096", `memroy: unknown field; did you mean "memory"? (line 1)`},
	{"other separator", "memory: 4096\nstorage-pool: x", `storage-pool: unknown field; did you mean "storage_pool"? (line 2)`},
	{
		"unlike any key", "memory: 4096\ncolour: red",
		"colour: unknown field; known fields are host, cores, memory, ratio, storage_pool, autoboot, sector_size, priority, groups, disks, networks, network, boot (line 2)",
	},
	{"unknown key in a list", "memory: 4096\ndisks:\n- size: 1\n- {siez: 1, size: 2}", `disks[1].siez: unknown field; did you mean "size"? (line 4)`},
	{"word for a number", "memory: lots", `memory: got the text "lots", want a whole number of at least 2048 (line 1)`},
	{"quoted number", `memory: "4096"`, `memory: got the text "4096", want a whole number of at least 2048; write it without quotes (line 1)`},
	{"fraction", "memory: 4096\ncores: 1.5", "cores: got the number 1.5, want a whole number from 1 to 512 (line 2)"},
	{"too small", "memory: 1", "memory: got the number 1, want a whole number of at least 2048 (line 1)"},
	{"negative", "memory: -4096", "memory: got the number -4096, want a whole number of at least 2048 (line 1)"},
	{"too large", "memory: 4096\ncores: 513", "cores: got the number 513, want a whole number from 1 to 512 (line 2)"},
	{"larger than its type", "memory: 4096\npriority: 128", "priority: got the number 128, want a whole number from -128 to 127 (line 2)"},
	{"not a finite number", "memory: 4096\nratio: .nan", "ratio: got the number .nan, want a number from 0 to 1 (line 2)"},
	{"number for text", "memory: 4096\nstorage_pool: 12", `storage_pool: got the number 12, want text of at most 20 characters that matches ^[a-z][a-z0-9-]*$; put it in quotes (line 2)`},
	{"text against the pattern", "memory: 4096\nstorage_pool: Pool", `storage_pool: got the text "Pool", want text of at most 20 characters that matches ^[a-z][a-z0-9-]*$ (line 2)`},
	{"text too long", "memory: 4096\nstorage_pool: " + strings.Repeat("a", 21), `storage_pool: got the text "` + strings.Repeat("a", 21) + `", want text of at most 20 characters that matches ^[a-z][a-z0-9-]*$ (line 2)`},
	{"item against the pattern", "memory: 4096\ngroups: [a, B]", `groups[1]: got the text "B", want text that matches ^[a-z]+$ (line 2)`},
	{"too many items", "memory: 4096\ngroups: [a, b, c, d]", "groups: has 4 items; want a list of at most 3 items (line 2)"},
	{"too few items", "memory: 4096\nnetworks: []", "networks: has 0 items; want a list of at least 1 items (line 2)"},
	{"not in the enum", "memory: 4096\ndisks: [{size: 1, bus: ide}]", `disks[0].bus: got the text "ide", want one of virtio, sata, nvme (line 2)`},
	{"number not in the enum", "memory: 4096\nsector_size: 513", "sector_size: got the number 513, want one of 512, 4096 (line 2)"},
	{"word for a boolean", "memory: 4096\nautoboot: yes", `autoboot: got the text "yes", want true or false (line 2)`},
	{"key without value", "memory:", "memory: got nothing, want a whole number of at least 2048 (line 1)"},
	{"required in a list's item", "memory: 4096\ndisks:\n- bus: sata", "disks[0].size: required, but not given; want a whole number from 1 to 65536 (line 3)"},
	{"mapping for a list", "memory: 4096\ndisks: {size: 1}", "disks: got a mapping, want a list of at most 4 items (line 2)"},
	{"list for a mapping", "memory: 4096\nboot: [1]", "boot: got a list, want a mapping with the fields size, bus (line 2)"},
	{"text type's own rule", "memory: 4096\nnetwork: {gateway: here}", `network.gateway: got "here": ParseAddr("here"): unable to parse IP (line 2)`},
	{"root is a list", "[1]", "got a list, want a mapping with the fields host, cores, memory, ratio, storage_pool, autoboot, sector_size, priority, groups, disks, networks, network, boot (line 1)"},
	{"root is text", "cores", "got the text \"cores\", want a mapping with the fields host, cores, memory, ratio, storage_pool, autoboot, sector_size, priority, groups, disks, networks, network, boot (line 1)"},
	{"duplicate key", "memory: 4096\ncores: 1\nmemory: 8192", "memory: given twice, first on line 1 (line 3)"},
	{"several documents", "memory: 4096\n---\nmemory: 8192", "the data holds more than one document; give one (line 2)"},
	{"alias", "memory: &m 4096\ncores: *m", "memory: anchors and aliases are not supported; write the value out (line 1); cores: anchors and aliases are not supported; write the value out (line 2)"},
	{"rules across fields", "memory: 2048\ncores: 8", "cores: 8 cores need at least 4096 MiB of memory; memory: too little for that many cores"},
}

func TestBadDataIsRefusedWithFieldAndReason(t *testing.T) {
	for _, tt := range refused {
		t.Run(tt.name, func(t *testing.T) {
			got, err := classdata.Decode[machine](tt.data)

			require.EqualError(t, err, "invalid class data: "+tt.want)
			assert.Equal(t, driver.KindTerminal, driver.KindOf(err))
			assert.Zero(t, got)
		})
	}
}

func TestAllProblemsAreReportedAtOnce(t *testing.T) {
	_, err := classdata.Decode[machine]("cores: 0\nratio: two\ndisks: [{}, {size: x, buss: 1}]")

	for _, field := range []string{"cores: ", "ratio: ", "disks[0].size: ", "disks[1].size: ", "disks[1].buss: ", "memory: "} {
		assert.ErrorContains(t, err, field)
	}
}

func TestInvalidYAMLSaysWhere(t *testing.T) {
	_, err := classdata.Decode[machine]("memory: 4096\ncores: [")

	require.ErrorContains(t, err, "invalid class data: not valid YAML: ")
	assert.ErrorContains(t, err, "line 2")
	assert.Equal(t, driver.KindTerminal, driver.KindOf(err))
}

func TestHostileDocumentsAreBounded(t *testing.T) {
	bomb := "a: &a [x,x,x,x,x,x,x,x,x]\n"
	for c := 'b'; c < 'z'; c++ {
		bomb += fmt.Sprintf("%c: &%c [%s]\n", c, c, strings.Repeat("*"+string(c-1)+",", 9))
	}

	tests := map[string]string{
		"aliases":      bomb,
		"size":         "host: " + strings.Repeat("x", classdata.MaxSize),
		"depth":        "disks: " + strings.Repeat("[", 20000),
		"many keys":    strings.Repeat("memroy: 1\n", 5000),
		"long key":     strings.Repeat("k", 30000) + ": 1",
		"control byte": "host: \x00",
	}

	for name, data := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := classdata.Decode[machine](data)

			require.Error(t, err)
			assert.Equal(t, driver.KindTerminal, driver.KindOf(err))
			assert.Less(t, len(err.Error()), 8<<10)
		})
	}
}

func TestWrongTagsPanicWithTheirReason(t *testing.T) {
	tests := map[string]func(){
		"cannot show a map": func() {
			classdata.Schema[struct {
				Labels map[string]int `json:"labels" doc:"x"`
			}]("")
		},
		"doc tag is missing": func() {
			classdata.Schema[struct {
				A int `json:"a"`
			}]("")
		},
		"the json tag has to be the key": func() {
			classdata.Schema[struct {
				A int `json:"a,omitempty" doc:"x"`
			}]("")
		},
		`default "0": got the number 0, want a whole number of at least 1`: func() {
			classdata.Schema[struct {
				A int `json:"a" doc:"x" default:"0" min:"1"`
			}]("")
		},
		"either required or has a default": func() {
			classdata.Schema[struct {
				A int `json:"a" doc:"x" default:"0" required:"true"`
			}]("")
		},
		"is not a struct":                     func() { classdata.Schema[int]("") },
		"contains itself":                     func() { classdata.Schema[recursive]("") },
		"browsers do not know":                func() { classdata.Schema[goPattern]("") },
		`a boolean cannot have the tag "min"`: func() { classdata.Schema[boundedBool]("") },
	}

	for want, call := range tests {
		t.Run(want, func(t *testing.T) {
			defer func() { require.Contains(t, fmt.Sprint(recover()), want) }()
			call()
		})
	}
}

type recursive struct {
	Next []recursive `json:"next" doc:"x"`
}

type goPattern struct {
	A string `json:"a" doc:"x" pattern:"(?i)a"`
}

type boundedBool struct {
	A bool `json:"a" doc:"x" min:"1"`
}

// FuzzDecode holds whatever Decode takes to the type's own rules: encoded and decoded again it is the same.
func FuzzDecode(f *testing.F) {
	for _, tt := range refused {
		f.Add(tt.data)
	}

	f.Add("memory: 0x2000\nratio: 1\ncores: 2.0\nhost: ''")
	f.Add("memory: 18446744073709551615")

	f.Fuzz(func(t *testing.T, data string) {
		got, err := classdata.Decode[machine](data)
		if err != nil {
			require.Equal(t, driver.KindTerminal, driver.KindOf(err))

			return
		}

		encoded, err := json.Marshal(withoutNull(got))
		require.NoError(t, err)

		again, err := classdata.Decode[machine](string(encoded))
		require.NoError(t, err, "%s", encoded)
		require.Equal(t, got, again)
	})
}

// withoutNull encodes m with only the keys that are set, as a user would write it.
func withoutNull(m machine) map[string]any {
	out := map[string]any{}
	v := reflect.ValueOf(m)

	for _, sf := range reflect.VisibleFields(v.Type()) {
		key := sf.Tag.Get("json")
		value := v.FieldByIndex(sf.Index)

		switch {
		case key == "" || key == "-":
		case (value.Kind() == reflect.Pointer || value.Kind() == reflect.Slice) && value.IsNil():
		case key == "network":
			out[key] = networkKeys(m.Network)
		case key == "networks":
			list := []any{}
			for _, n := range m.Networks {
				list = append(list, networkKeys(n))
			}

			out[key] = list
		default:
			out[key] = value.Interface()
		}
	}

	return out
}

func networkKeys(n network) map[string]any {
	if !n.Gateway.IsValid() {
		return map[string]any{"name": n.Name}
	}

	return map[string]any{"name": n.Name, "gateway": n.Gateway}
}

type account struct {
	Host     string   `json:"host" doc:"Where." required:"true" local:"true"`
	User     string   `json:"user" doc:"Who." default:"me"`
	Password string   `json:"password" doc:"The password." secret:"true" min:"8"`
	Tokens   []string `json:"tokens" doc:"Tokens." secret:"true" pattern:"^[a-z]+$"`
	Limits   disk     `json:"limits" doc:"Limits."`
}

func TestPartMayLeaveOutWhatIsRequired(t *testing.T) {
	require.NoError(t, classdata.CheckPart[account]("part", "user: you", true))
	require.NoError(t, classdata.CheckPart[account]("part", "", true))
	require.NoError(t, classdata.CheckPart[account]("part", "{host: h, password: canary-canary}", false))
	require.ErrorContains(t, classdata.CheckPart[account]("part", "{usr: you, limits: {size: x}}", true), `usr: unknown field; did you mean "user"?`)
	require.ErrorContains(t, classdata.CheckPart[account]("part", "{limits: {size: x}}", true), `limits.size: got the text "x", want a whole number`)
}

func TestSecretIsRefusedInAPublicPartAndNeverQuoted(t *testing.T) {
	for _, tt := range []struct {
		name, data string
		public     bool
		want       string
	}{
		{"secret", "password: canary-canary", true, "password: this is a secret, which is not taken from here"},
		{"list of secrets", "tokens: [canary]", true, "tokens: this is a secret"},
		{"local", "host: canary", true, "host: this is not taken from here"},
		{"secret that is too short", "password: canary", false, "password: got another value, want text of at least 8 characters"},
		{"secret of the wrong type", "password: {canary: 1}", false, "password: got another value"},
		{"list of wrong secrets", "tokens: [canary-1]", false, "tokens[0]: got another value"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			err := classdata.CheckPart[account]("part", tt.data, tt.public)
			require.ErrorContains(t, err, tt.want)
			assert.NotContains(t, err.Error(), "canary")
		})
	}
}

func TestWrongProtectionTagPanics(t *testing.T) {
	type wrong struct {
		Password string `json:"password" doc:"The password." secret:"yes"`
	}

	require.PanicsWithValue(t, `classdata: classdata_test.wrong.Password: the secret tag is "yes", want "true" or none`, func() {
		_, _ = classdata.Decode[wrong]("")
	})
}

func TestSecretIsATagOfValuesAlone(t *testing.T) {
	type wrong struct {
		Account account `json:"account" doc:"The account." secret:"true"`
	}

	type list struct {
		Accounts []account `json:"accounts" doc:"The accounts." secret:"true"`
	}

	const text = "a struct cannot be a secret, which would protect none of its fields; tag those"

	require.PanicsWithValue(t, "classdata: classdata_test.wrong.Account: "+text, func() { _, _ = classdata.Decode[wrong]("") })
	require.PanicsWithValue(t, "classdata: classdata_test.list.Accounts: "+text, func() { _, _ = classdata.Decode[list]("") })
}
