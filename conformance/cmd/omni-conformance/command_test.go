package main

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/omni-infra/omni-infra-providers/conformance"
	"github.com/omni-infra/omni-infra-providers/conformance/report"
)

func write(t *testing.T, text string) (file string) {
	t.Helper()

	file = filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, []byte(text), 0o600))

	return file
}

// run executes the command and returns what it prints.
func run(ctx context.Context, args ...string) (stdout, stderr string, err error) {
	var out, errs bytes.Buffer

	cmd := newCommand(append([]string{"omni-conformance"}, args...), &out, &errs, nil)
	err = cmd.ExecuteContext(ctx)

	return out.String(), errs.String(), err
}

func TestBadFlagIsNamed(t *testing.T) {
	data, key := write(t, "{}"), write(t, "key")

	for _, tt := range []struct {
		name, want string
		args       []string
	}{
		{"no program", "the provider's program is missing", []string{"--data", data}},
		{"program that is not there", `"no-such-program": executable file not found`, []string{"--data", data, "--", "no-such-program"}},
		{"no data", "--data is required", []string{"--", "sh"}},
		{"data that is not there", "--data: open no-such-file", []string{"--data", "no-such-file", "--", "sh"}},
		{"feature", `"flies" does not exist`, []string{"--data", data, "--claims", "flies", "--", "sh"}},
		{"waiver without reason", `--waive "reboot": want CASE=REASON`, []string{"--data", data, "--waive", "reboot", "--", "sh"}},
		{"waiver of no case", `"no/case" does not exist`, []string{"--data", data, "--waive", "no/case=why", "--", "sh"}},
		{"regexp", "--run: error parsing regexp", []string{"--data", data, "--run", "(", "--", "sh"}},
		{"no case", "no case is called like zzz", []string{"--data", data, "--run", "zzz", "--", "sh"}},
		{"id", `provider id "Big": want a DNS label`, []string{"--data", data, "--id", "Big", "--", "sh"}},
		{"hook", "--hook: exec:", []string{"--data", data, "--hook", "no-such-hook", "--", "sh"}},
		{"omni without key", "--admin-key is required with --omni", []string{"--data", data, "--omni", "https://omni.test", "--", "sh"}},
		{"key without omni", "--omni is missing", []string{"--data", data, "--admin-key", key, "--", "sh"}},
		{"key that is none", "admin key: want what OMNI_SERVICE_ACCOUNT_KEY holds", []string{"--data", data, "--omni", "https://omni.test", "--admin-key", key, "--", "sh"}},
		{"omni with a password", "without user and password", []string{"--data", data, "--omni", "https://me:canary@omni.test", "--admin-key", key, "--", "sh"}},
		{"report", `--report "pdf": want text, json, junit, html`, []string{"--data", data, "--report", "pdf", "--", "sh"}},
		{"reports to one place", `--report "json": another report goes to the same place`, []string{"--data", data, "--report", "text", "--report", "json", "--", "sh"}},
		{"patience", "want times that are not negative", []string{"--data", data, "--patience", "-1s", "--", "sh"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, err := run(t.Context(), tt.args...)
			require.ErrorContains(t, err, tt.want)
			require.NotErrorIs(t, err, errFailures)
			require.NotContains(t, err.Error(), "canary")
		})
	}
}

func TestListHasEveryCaseWithWhatItNeeds(t *testing.T) {
	text, _, err := run(t.Context(), "--list")
	require.NoError(t, err)

	for _, c := range conformance.Cases() {
		assert.Contains(t, text, c.ID+"  "+c.Name)
		assert.Contains(t, text, c.Rule)
		assert.Contains(t, text, strings.Join(c.Means, ", "))
	}
}

func TestProgramThatDoesNotWorkIsToldSo(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		program    []string
	}{
		{"it ends at once", "the provider has ended by itself: exit status 3", []string{"sh", "-c", "echo no cloud; exit 3"}},
		{"it does nothing", "no status of the provider, after 2s", []string{"sleep", "1000"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			text, progress, err := run(t.Context(), append([]string{
				"--data", write(t, "{}"), "--patience", "2s", "--calm", "1s", "--run", "^(GO-01|DP-01|FA-02)$", "--",
			}, tt.program...)...)

			require.ErrorIs(t, err, errFailures)
			assert.Contains(t, text, "got:     no status of the provider")
			assert.Contains(t, text, tt.want)
			assert.Contains(t, text, "provider conformance starts")
			assert.Regexp(t, `(?m)^error +DP-01 .*not run: the program fails GO-01 start$`, text)
			assert.Regexp(t, `(?m)^unseen +FA-02 .*needs a`, text)
			assert.Contains(t, text, "1 failed, 1 could not be judged, 1 not visible here")
			assert.Regexp(t, `(?m)^GO-01  start +fail`, progress)
		})
	}
}

func TestSecretsAreInNoReport(t *testing.T) {
	dir := t.TempDir()
	page, data := filepath.Join(dir, "report.html"), filepath.Join(dir, "report.json")

	_, _, err := run(t.Context(), "--data", write(t, "{}"), "--patience", "2s", "--calm", "1s", "--run", "GO-01",
		"--report", "html="+page, "--report", "json="+data, "--",
		"sh", "-c", `echo "$OMNI_SERVICE_ACCOUNT_KEY" >`+filepath.Join(dir, "key")+`; echo "my key is $OMNI_SERVICE_ACCOUNT_KEY"; exit 1`)
	require.ErrorIs(t, err, errFailures)

	key, err := os.ReadFile(filepath.Join(dir, "key"))
	require.NoError(t, err)
	require.Greater(t, len(key), 100)

	for _, file := range []string{page, data} {
		text, err := os.ReadFile(file)
		require.NoError(t, err)
		assert.NotContains(t, string(text), strings.TrimSpace(string(key)))
		assert.Contains(t, string(text), "my key is [service account key]")
	}
}

func TestEndOfTheRunEndsTheProgramAndIsReported(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	pid := filepath.Join(t.TempDir(), "pid")

	go func() {
		for {
			if text, err := os.ReadFile(pid); err == nil && len(text) > 1 {
				cancel()

				return
			}

			time.Sleep(10 * time.Millisecond)
		}
	}()

	text, _, err := run(ctx, "--data", write(t, "{}"), "--run", "GO-01|DP-01", "--", "sh", "-c", "echo $$ > "+pid+"; sleep 1000")
	require.ErrorIs(t, err, errFailures)
	assert.Contains(t, text, "interrupted")
	assert.Contains(t, text, "2 could not be judged")

	number, err := os.ReadFile(pid)
	require.NoError(t, err)
	assert.NoFileExists(t, "/proc/"+strings.TrimSpace(string(number))+"/exe", "the program still runs")
}

func TestCommandToRunACaseAgainIsThisOneButForTheCase(t *testing.T) {
	for _, tt := range []struct {
		want      string
		own, args []string
	}{
		{`omni-conformance --data c.yaml --run '^LC-01$' -- sh -c 'exit 1'`, []string{"--run", "LC", "--data", "c.yaml", "--"}, []string{"sh", "-c", "exit 1"}},
		{`omni-conformance --data c.yaml --run '^LC-01$' -- sh -c 'echo '\''a'\'''`, []string{"--data", "c.yaml", "--run=x", "--"}, []string{"sh", "-c", "echo 'a'"}},
		{`omni-conformance --run '^LC-01$' -- provider --run x -- y`, nil, []string{"provider", "--run", "x", "--", "y"}},
	} {
		s := settings{args: slices.Concat([]string{"omni-conformance"}, tt.own, tt.args), command: tt.args}
		assert.Equal(t, tt.want, s.again(report.Case{ID: "LC-01"}))
	}
}

func TestAdminKeyIsTakenOutOfExportLines(t *testing.T) {
	for _, text := range []string{"secret\n", "export OMNI_ENDPOINT=x\nexport OMNI_SERVICE_ACCOUNT_KEY=secret\n", `OMNI_SERVICE_ACCOUNT_KEY="secret"`} {
		assert.Equal(t, "secret", adminKey(text))
	}
}

func TestReportsGoWhereTheyAreToldTo(t *testing.T) {
	all, err := settings{reports: []string{"text", "json=a.json", "html"}, output: ""}.outputs()
	require.ErrorContains(t, err, "html")
	assert.Empty(t, all)

	all, err = settings{reports: []string{"junit", "json=a.json"}, output: "b.xml"}.outputs()
	require.NoError(t, err)
	assert.Equal(t, []output{{"junit", "b.xml"}, {"json", "a.json"}}, all)
	require.Error(t, output{"text", filepath.Join(t.TempDir(), "none", "x")}.write(report.Report{}, io.Discard))
}
