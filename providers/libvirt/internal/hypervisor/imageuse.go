package hypervisor

import (
	"sync"
	"time"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// imageUse is what this process knows of who needs which image. The zero value is ready for use.
type imageUse struct {
	mu sync.Mutex
	// waiting are the requests whose disks do not lie on the image yet.
	waiting map[driver.Ref]imageRef
	// last is when an image was wanted last.
	last map[imageRef]time.Time
}

// reserve keeps an image from being swept away before the request's disk is made of it.
func (u *imageUse) reserve(ref driver.Ref, image imageRef) {
	u.mu.Lock()
	defer u.mu.Unlock()

	if u.waiting == nil {
		u.waiting, u.last = map[driver.Ref]imageRef{}, map[imageRef]time.Time{}
	}

	u.waiting[ref] = image
	u.last[image] = time.Now()
}

// release ends the request's need of an image: it has its disk, or wants none any more.
func (u *imageUse) release(ref driver.Ref) {
	u.mu.Lock()
	defer u.mu.Unlock()

	if image, ok := u.waiting[ref]; ok {
		u.last[image] = time.Now()
	}

	delete(u.waiting, ref)
}

// reserved says whether a request waits for the image.
func (u *imageUse) reserved(image imageRef) bool {
	u.mu.Lock()
	defer u.mu.Unlock()

	for _, one := range u.waiting {
		if one == image {
			return true
		}
	}

	return false
}

// lastUse is when the image was last wanted, as far as this process knows.
func (u *imageUse) lastUse(image imageRef) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()

	return u.last[image]
}

// forget drops what is known of an image that is gone.
func (u *imageUse) forget(image imageRef) {
	u.mu.Lock()
	defer u.mu.Unlock()

	delete(u.last, image)
}
