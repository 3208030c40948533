package conformance

import (
	"fmt"
	"hash/fnv"
	"math/rand/v2"
)

// shortPoints is how many points of a generated case are played with go test's flag -short.
const shortPoints = 3

// draw takes one of the troubles out of each of so many equal parts of them, so that the whole course of the case is covered. The
// same seed draws the same. of says out of how many, empty if none was left out.
func draw(c testCase, all []trouble, points int, seed uint64) (drawn []trouble, of string) {
	if len(all) <= points {
		return all, ""
	}

	id := fnv.New64a()
	_, _ = id.Write([]byte(c.id)) // It never fails.
	random := rand.New(rand.NewPCG(seed, id.Sum64()))

	for n := range points {
		first, end := n*len(all)/points, (n+1)*len(all)/points
		drawn = append(drawn, all[first+random.IntN(end-first)])
	}

	return drawn, fmt.Sprintf(" of %s", pointsOf(all))
}
