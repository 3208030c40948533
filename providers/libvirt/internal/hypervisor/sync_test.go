package hypervisor

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLockIsGivenToOneAtATimeAndWaitersGiveUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var l locks

		release, err := l.acquire(t.Context(), "a")
		require.NoError(t, err)

		other, err := l.acquire(t.Context(), "b")
		require.NoError(t, err)
		other()

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()

		_, err = l.acquire(ctx, "a")
		require.ErrorIs(t, err, context.DeadlineExceeded)

		release()

		release, err = l.acquire(t.Context(), "a")
		require.NoError(t, err)
		release()
		require.Empty(t, l.held)
	})
}

func TestSourceThatBreaksOffIsNotTakenForItsEnd(t *testing.T) {
	chunk := make([]byte, 8)

	n, err := fill(iotest.OneByteReader(strings.NewReader("0123456789")), chunk)
	require.NoError(t, err)
	require.Equal(t, 8, n)

	n, err = fill(strings.NewReader("01"), chunk)
	require.Equal(t, io.EOF, err) //nolint:errorlint // The plain error is meant.
	require.Equal(t, 2, n)

	for _, broken := range []error{io.ErrUnexpectedEOF, errors.New("stalled")} {
		_, err = fill(io.MultiReader(strings.NewReader("01"), iotest.ErrReader(broken)), chunk)
		require.Equal(t, broken, err) //nolint:errorlint // See above.
	}
}
