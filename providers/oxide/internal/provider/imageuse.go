package provider

import (
	"sync"
	"time"

	"github.com/omni-infra/omni-infra-providers/shared/driver"
)

// imageUse is what this process knows of who needs which image. The zero value is ready for use.
type imageUse struct {
	mu sync.Mutex
	// waiting are the requests whose disks are not made of the image yet.
	waiting map[driver.Ref]imageRef
	// last is when an image was last seen to be wanted, or first seen not to be.
	last map[imageRef]time.Time
}

// reserve keeps an image from being swept away before the request's disk is made of it.
func (u *imageUse) reserve(ref driver.Ref, image imageRef) {
	u.mu.Lock()
	defer u.mu.Unlock()

	if u.waiting == nil {
		u.waiting = map[driver.Ref]imageRef{}
	}

	u.waiting[ref] = image
	u.note(image)
}

// release ends the request's need of an image: it has its disk, or wants none any more.
func (u *imageUse) release(ref driver.Ref) {
	u.mu.Lock()
	defer u.mu.Unlock()

	if image, ok := u.waiting[ref]; ok {
		u.note(image)
	}

	delete(u.waiting, ref)
}

// reserved says whether a request waits for the image. One that is to be the silo's is a project's at first.
func (u *imageUse) reserved(image imageRef) bool {
	u.mu.Lock()
	defer u.mu.Unlock()

	for _, one := range u.waiting {
		if one == image || one == (imageRef{name: image.name}) {
			return true
		}
	}

	return false
}

// wanted notes that somebody uses the image.
func (u *imageUse) wanted(image imageRef) {
	u.mu.Lock()
	defer u.mu.Unlock()

	u.note(image)
}

func (u *imageUse) note(image imageRef) {
	if u.last == nil {
		u.last = map[imageRef]time.Time{}
	}

	u.last[image] = time.Now()
}

// unusedSince is since when nobody uses an image of which the caller has seen that: now, if that is new.
func (u *imageUse) unusedSince(image imageRef) time.Time {
	u.mu.Lock()
	defer u.mu.Unlock()

	if _, ok := u.last[image]; !ok {
		u.note(image)
	}

	return u.last[image]
}

// forget drops what is known of an image that is gone.
func (u *imageUse) forget(image imageRef) {
	u.mu.Lock()
	defer u.mu.Unlock()

	delete(u.last, image)
}
