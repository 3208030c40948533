package machine

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Beside the bytes of an image there may be small volumes whose names alone say something: that the bytes are whole, where there are
// no overlays that could say so, and since when nothing has used the image.
const (
	dataSuffix   = ".raw"
	readySuffix  = ".ready"
	unusedSuffix = ".unused"
)

var (
	imageReady  = regexp.MustCompile(`^[0-9a-f]{12}-[0-9a-f]{8}\.ready$`)
	imageUnused = regexp.MustCompile(`^[0-9a-f]{12}-([0-9a-f]{8,15})\.unused$`)
)

// ImageData is the name of a volume for the bytes of an image, one for each attempt to upload them.
func ImageData(image string, attempt [4]byte) string {
	return fmt.Sprintf("%s-%x%s", image, attempt, dataSuffix)
}

// ImageReady is the name of the volume that says that the bytes of an image, in the volume data, are whole.
func ImageReady(data string) string { return strings.TrimSuffix(data, dataSuffix) + readySuffix }

// DataOfReady returns the volume that a volume of that name says to be whole.
func DataOfReady(providerID, volume string) (data string, ok bool) {
	rest, ok := strings.CutPrefix(volume, ImagePrefix(providerID))

	return strings.TrimSuffix(volume, readySuffix) + dataSuffix, ok && imageReady.MatchString(rest)
}

// ImageUnused is the name of the volume that says since when an image is not used.
func ImageUnused(image string, since time.Time) string {
	return fmt.Sprintf("%s-%08x%s", image, max(since.Unix(), 0), unusedSuffix)
}

// UnusedSince returns since when, according to a volume of that name, its image is not used.
func UnusedSince(providerID, volume string) (time.Time, bool) {
	rest, ok := strings.CutPrefix(volume, ImagePrefix(providerID))
	if !ok {
		return time.Time{}, false
	}

	match := imageUnused.FindStringSubmatch(rest)
	if match == nil {
		return time.Time{}, false
	}

	seconds, err := strconv.ParseInt(match[1], 16, 64)

	return time.Unix(seconds, 0), err == nil
}
