package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var update = flag.Bool("update", false, "write the golden files")

// sample has a case of each verdict, and text that would break careless writers.
func sample() Report {
	return Report{
		Provider: "example", Where: "over the wire", Claims: []string{"power", "reboot"},
		Cases: []Case{
			{ID: "LC-01", Name: "provision", Rule: "A request becomes one machine.", Verdict: Pass, Seconds: 1.25},
			{
				ID: "LC-02", Name: "provision/uuid", Rule: "The UUID is known early.", Verdict: Fail, Seconds: 12,
				Means: []string{"a look at the cloud's machines"},
				Failure: &Failure{
					Want: "1 machine", Got: "2 machines\n\"a\" & <b>\x00", Again: "omni-conformance --run '^LC-02$' -- provider",
					History: []string{"00:00:00.100 operator makes r-1", "00:00:01.000 provider: <script>alert(1)</script>", "  second line"},
				},
			},
			{ID: "DP-01", Name: "deprovision", Rule: "It goes.", Verdict: Broken, Reason: "the hook ends with 3"},
			{ID: "DT-01", Name: "power", Rule: "It is off.", Verdict: Unclaimed, Features: []string{"power"}, Reason: `feature "power" is not claimed`},
			{ID: "DT-02", Name: "reboot", Rule: "It restarts.", Verdict: Waived, Reason: "no API for it", Failure: &Failure{Want: "2 boots", Got: "1 boot"}},
			{ID: "CR-01", Name: "crash", Rule: "It comes back.", Verdict: Unseen, Reason: "needs a simulated cloud"},
		},
	}
}

func TestFormatsStayAsTheyAre(t *testing.T) {
	for format, file := range map[string]string{"text": "report.txt", "json": "report.json", "junit": "report.xml", "html": "report.html"} {
		t.Run(format, func(t *testing.T) {
			var got bytes.Buffer

			require.NoError(t, sample().Write(&got, format))

			path := filepath.Join("testdata", file)

			if *update {
				require.NoError(t, os.WriteFile(path, got.Bytes(), 0o600))
			}

			want, err := os.ReadFile(path)
			require.NoError(t, err)
			require.Equal(t, string(want), got.String(), "go test ./conformance/report -update writes it anew")
		})
	}

	require.ErrorContains(t, sample().Write(io.Discard, "pdf"), `"pdf": want one of text, json, junit, html`)
}

func TestPageAndJUnitAreWellFormed(t *testing.T) {
	for _, format := range []string{"html", "junit"} {
		var got bytes.Buffer

		require.NoError(t, sample().Write(&got, format))
		require.NotContains(t, got.String(), "<script")

		decoder := xml.NewDecoder(&got)
		decoder.Entity = xml.HTMLEntity

		for {
			_, err := decoder.Token()
			if errors.Is(err, io.EOF) {
				break
			}

			require.NoError(t, err, format)
		}
	}
}

func TestPageNeedsNothingElse(t *testing.T) {
	var got bytes.Buffer

	require.NoError(t, sample().WriteHTML(&got))

	for _, outside := range []string{"http:", "https:", "src=", "@import", "url("} {
		require.NotContains(t, got.String(), outside)
	}
}

func TestReportIsReadAsItWasWritten(t *testing.T) {
	var text bytes.Buffer

	want := sample()
	want.Version = Version
	want.Cases[1].Failure.Got = "2 machines"

	require.NoError(t, want.WriteJSON(&text))

	got, err := Read(&text)
	require.NoError(t, err)
	require.Equal(t, want, got)
}

func TestReportThatMakesNoSenseIsRefused(t *testing.T) {
	for want, text := range map[string]string{
		"version is 0, want 1":     `{}`,
		"version is 2, want 1":     `{"version": 2}`,
		"provider is missing":      `{"version": 1}`,
		"case 1 has no id":         `{"version": 1, "provider": "p", "cases": [{"name": "n", "verdict": "pass"}]}`,
		`case "A" is there twice`:  `{"version": 1, "provider": "p", "cases": [{"id": "A", "name": "n", "verdict": "pass"}, {"id": "A", "name": "m", "verdict": "pass"}]}`,
		`case "A" has verdict "?"`: `{"version": 1, "provider": "p", "cases": [{"id": "A", "name": "n", "verdict": "?"}]}`,
		"read report":              `[`,
	} {
		_, err := Read(strings.NewReader(text))
		require.ErrorContains(t, err, want)
	}
}

func FuzzReadRefusesOrCanBeWritten(f *testing.F) {
	var text bytes.Buffer

	require.NoError(f, sample().WriteJSON(&text))
	f.Add(text.Bytes())
	f.Add([]byte(`{"version": 1, "provider": "\u0000", "cases": [{"id": "A", "name": "n", "verdict": "fail"}]}`))
	f.Add([]byte(`{"version": 1, "provider": "\u009b2J", "claims": ["\u001b[2J"], "cases": [{"id": "\u001b", "name": "\u007f", "rule": "\u0007", "verdict": "fail"}]}`))

	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := Read(bytes.NewReader(data))
		if err != nil {
			return
		}

		for _, format := range Formats {
			var written bytes.Buffer

			require.NoError(t, r.Write(&written, format))

			if format != "json" {
				require.NotRegexp(t, `[\x00-\x08\x0b-\x1f\x7f]|\x{9b}`, written.String(), format)
			}
		}
	})
}

func TestStableReportHasNothingThatDiffersBetweenRuns(t *testing.T) {
	for _, c := range sample().Stable().Cases {
		require.Zero(t, c.Seconds)
		require.Nil(t, c.Failure)
	}

	require.NotNil(t, sample().Cases[1].Failure)
}

func TestOnlyFailuresAndErrorsAreNotOK(t *testing.T) {
	r := sample()
	require.False(t, r.OK())
	require.Equal(t, "1 passed, 1 failed, 1 could not be judged, 1 waived, 1 unclaimed, 1 not visible here", r.Summary())

	r.Cases = append(r.Cases[:1:1], r.Cases[3:]...)
	require.True(t, r.OK())
}

func TestLongHistoryIsAbridgedInTheMiddle(t *testing.T) {
	short := Abridge(strings.Split(strings.Repeat("line\n", 999)+"line", "\n"))

	require.Len(t, short, 121)
	require.Contains(t, short, "... 880 lines ...")
}
