package conformance

import (
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestHistoryIsReadBackFromItsText(t *testing.T) {
	for seed := range uint64(200) {
		drawn := randomHistory(seed, 30, features)
		require.Len(t, drawn, 30)

		read, err := parseHistory(drawn.String())
		require.NoError(t, err)
		require.Equal(t, drawn.String(), read.String())
		require.Equal(t, drawn.String(), randomHistory(seed, 30, features).String(), "the same seed draws the same history")
	}
}

func TestHistoryWithoutClaimsNeedsNoFeature(t *testing.T) {
	for seed := range uint64(200) {
		require.Empty(t, randomHistory(seed, 30, nil).needs())
	}

	h, err := parseHistory("0s create r-1; 1m power r-1 off; 1m power r-1 on; 0s delete-machine r-1")
	require.NoError(t, err)
	require.Equal(t, []Feature{Power, Replace}, h.needs())
}

func TestBadTextOfAHistoryIsRefusedWithItsStep(t *testing.T) {
	for text, want := range map[string]string{
		"create r-1":                  `step 1, "create r-1": time "create"`,
		"0s create r-1; 1s":           `step 2, "1s": want a time and the name`,
		"0s fly r-1":                  `operation "fly" does not exist; there are "create",`,
		"0s create":                   `want create REQUEST`,
		"0s create r-1 r-2":           `want create REQUEST`,
		"0s create s-1":               `argument "s-1" is no REQUEST; want create REQUEST`,
		"0s power r-1 maybe":          `argument "maybe" is no on|off`,
		"0s kill 5":                   `time "5": want a duration`,
		"-1s create r-1":              `time "-1s": want 0s to 24h0m0s`,
		"0s outage 25h":               `time "25h": want 0s to 24h0m0s`,
		"0s fault fire 3":             `argument "fire" is no FAULT`,
		"0s set s-1 99999":            `argument "99999" is no COUNT`,
		"0s reboot s-1.0 UPPER; 0s x": `step 2, "0s x"`,
	} {
		_, err := parseHistory(text)
		require.ErrorContains(t, err, want, text)
	}
}

func FuzzHistoryText(f *testing.F) {
	f.Add("0s create r-1; 2s kill 5s; 400ms fault reply-lost 3;")
	f.Add(randomHistory(0, 20, features).String())

	f.Fuzz(func(t *testing.T, text string) {
		h, err := parseHistory(text)
		if err != nil {
			return
		}

		again, err := parseHistory(h.String())
		require.NoError(t, err)
		require.Equal(t, h.String(), again.String())
	})
}

func TestFailingHistoryIsCutDownToWhatMatters(t *testing.T) {
	h, err := parseHistory("0s create r-1; 3m17s set s-1 3; 12s kill 7m31s; 1s create r-2; 5s outage 40s; 2m30.5s reboot r-2 w-1; 1h remove r-1")
	require.NoError(t, err)

	tries := 0
	small := shrink(h, func(h history) bool {
		tries++
		text := h.String()

		return strings.Contains(text, "create r-2") && strings.Contains(text, "m30") && strings.Contains(text, "kill")
	})

	require.Equal(t, "0s kill 0s; 0s create r-2; 2m30s reboot r-2 w-1", small.String())
	require.LessOrEqual(t, tries, mostTries)
}

func TestHistoryThatFailsByChanceStaysAsItIs(t *testing.T) {
	h := randomHistory(1, 20, features)

	require.Equal(t, h.String(), shrink(slices.Clone(h), func(history) bool { return false }).String())
}

func TestKeptHistoriesAreHistories(t *testing.T) {
	for _, kept := range keptHistories {
		h, err := parseHistory(kept.text)
		require.NoError(t, err, kept.id)
		require.Equal(t, h.String(), kept.text, kept.id)
	}
}
