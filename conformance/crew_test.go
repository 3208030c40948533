package conformance

import (
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPointsOfACaseAreSharedAmongPlayers(t *testing.T) {
	const players = 3

	for _, tt := range []struct {
		points []int // of each case
		want   time.Duration
	}{
		{nil, 0},
		{[]int{0, 0, 0}, time.Second},
		{[]int{9}, 4 * time.Second},
		{[]int{9, 0, 0, 0}, 5 * time.Second},
		{[]int{4, 4, 4}, 5 * time.Second},
		{[]int{2 * mostWaiting}, 0},
	} {
		t.Run(fmt.Sprint(tt.points), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var (
					all           []testCase
					busy, most, n atomic.Int32
				)

				attempt := func() {
					n.Add(1)

					for now := busy.Add(1); ; {
						if before := most.Load(); now <= before || most.CompareAndSwap(before, now) {
							break
						}
					}

					time.Sleep(time.Second)
					busy.Add(-1)
				}

				want := int32(0)

				for _, points := range tt.points {
					all = append(all, testCase{id: fmt.Sprint(points)})
					want += int32(1 + points) //nolint:gosec // It is small.
				}

				start, w := time.Now(), newCrew()
				w.play(slices.Clone(all), players, func(c testCase) {
					var points int

					_, err := fmt.Sscan(c.id, &points)
					require.NoError(t, err)

					attempt()
					w.each(points, func(int) { attempt() })
				})

				require.Equal(t, want, n.Load(), "each is played once")
				require.LessOrEqual(t, most.Load(), int32(players))

				if tt.want > 0 {
					require.Equal(t, tt.want, time.Since(start))
				}
			})
		})
	}
}
