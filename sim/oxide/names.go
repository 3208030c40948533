package oxide

import (
	"regexp"
	"strings"
)

// Limits of the API, as its document and the control plane's constants have them.
const (
	maxName      = 63
	maxHostname  = 253
	maxPage      = 10_000
	defaultPage  = 100
	maxUserData  = 32 << 10
	maxBody      = 1 << 20
	maxBulkBody  = 8 << 20
	gib          = 1 << 30
	minMemory    = 1 * gib
	maxMemory    = 1536 * gib
	maxCPUs      = 254
	minDisk      = 1 * gib
	maxDisk      = 1023 * gib
	maxDisks     = 12
	maxNICs      = 8
	maxExternal  = 32
	maxEphemeral = 2
	maxGroups    = 16
	maxMembers   = 32
	maxKeys      = 100
	maxChunk     = 512 << 10
)

var (
	uuidForm     = regexp.MustCompile(`^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$`)
	nameChars    = regexp.MustCompile(`^[a-zA-Z0-9-]*$`)
	hostnameForm = regexp.MustCompile(`^[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?(\.[a-zA-Z0-9]([a-zA-Z0-9-]*[a-zA-Z0-9])?)*$`)
)

// isID says whether a name-or-id is an id: whatever looks like one is.
func isID(text string) bool { return uuidForm.MatchString(text) }

// checkName says what is wrong with a name.
func checkName(name string) error {
	switch {
	case name == "":
		return badBody("name requires at least one character")
	case len(name) > maxName:
		return badBody("name may contain at most 63 characters")
	case isID(name):
		return badBody("name cannot be a UUID to avoid ambiguity with IDs")
	case name[0] < 'a' || name[0] > 'z':
		return badBody("name must begin with an ASCII lowercase character")
	case !nameChars.MatchString(name):
		return badBody(`name contains invalid character: names must contain only lowercase and uppercase ASCII characters, numbers, and "-"`)
	case strings.HasSuffix(name, "-"):
		return badBody(`name cannot end with "-"`)
	}

	return nil
}

func checkHostname(name string) error {
	if name == "" || len(name) > maxHostname || !hostnameForm.MatchString(name) {
		return badBody("hostnames must comply with RFC 1035")
	}

	return nil
}

func badBody(problem string) error { return badRequest("unable to parse JSON body: %s", problem) }
