package omni_test

import (
	"bufio"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	sim "github.com/omni-infra/omni-infra-providers/sim/omni"
)

var update = flag.Bool("update", false, "write the golden files anew")

const accessGolden = "testdata/access.txt"

// probeAll returns the answers to all probes.
func probeAll(t *testing.T, opts sim.Options) []string {
	t.Helper()

	o := start(t, opts)
	c := provider(t, o, "fakecloud")
	provider(t, o, "thirdcloud")
	populate(t, o)

	p := &prober{t: t, client: c, st: c.Omni().State()}
	p.run()

	assert.Empty(t, o.Unmodelled())

	return p.answers
}

// TestProviderAccessIsThatOfTheRealServer compares the answers to a provider's calls with those recorded from Omni v1.9.3.
func TestProviderAccessIsThatOfTheRealServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		got := strings.Join(probeAll(t, sim.Options{}), "\n") + "\n"

		if *update {
			require.NoError(t, os.WriteFile(accessGolden, []byte(got), 0o600))
		}

		want, err := os.ReadFile(accessGolden)
		require.NoError(t, err)
		assert.Equal(t, string(want), got)
	})
}

// TestAccessMatchesTheRecording compares with the recording itself where it lies beside the repository. The real server has
// its cache defect there.
func TestAccessMatchesTheRecording(t *testing.T) {
	recorded, err := readRecording(filepath.Join("..", "..", "..", "shared", "oracle", "acl.txt"))
	if errors.Is(err, os.ErrNotExist) {
		return // TestProviderAccessIsThatOfTheRealServer has the facts.
	}

	require.NoError(t, err)

	synctest.Test(t, func(t *testing.T) {
		got := probeAll(t, sim.Options{Defects: sim.Defects{UnfilteredCache: true}})

		for i := range got {
			if name, _, ok := strings.Cut(got[i], " label="); ok {
				got[i] = name
			}
		}

		assert.Equal(t, recorded, got)
	})
}

var (
	recordedAnswer = regexp.MustCompile(`^(\S.*?)\s+(OK|ERR\[.*)$`)
	recordedItems  = regexp.MustCompile(`^    (\d+) items$`)
)

// readRecording brings the recording into the form of the prober.
func readRecording(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close() //nolint:errcheck // only read

	var (
		answers []string
		items   string
	)

	scanner := bufio.NewScanner(f)
	for scanner.Scan() {
		line := scanner.Text()

		switch m := recordedAnswer.FindStringSubmatch(line); {
		case recordedItems.MatchString(line):
			items = " " + recordedItems.FindStringSubmatch(line)[1]
		case m != nil && m[2] == "OK" && strings.HasPrefix(m[1], "list "):
			answers = append(answers, m[1]+" => OK"+items)
		case m != nil:
			answers = append(answers, m[1]+" => "+m[2])
		case len(answers) > 0 && (strings.HasPrefix(line, "\t") || strings.HasPrefix(line, "  line ")):
			answers[len(answers)-1] += " " + oneLine(line)
		}
	}

	return answers, scanner.Err()
}
