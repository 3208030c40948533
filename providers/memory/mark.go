package memory

import "github.com/omni-infra/omni-infra-providers/shared/driver"

// The ownership mark: tags that every object of ours has. Objects without them are somebody else's, whatever they are called.
const (
	tagProvider = "omni-infra.dev/provider"
	tagRequest  = "omni-infra.dev/request"
	tagImage    = "omni-infra.dev/image"
	tagVersion  = "omni-infra.dev/version"

	// markVersion tells later releases how to read the mark.
	markVersion = "1"
)

// selector has the tags that find the objects of one request.
func selector(ref driver.Ref) map[string]string {
	return map[string]string{tagProvider: ref.ProviderID, tagRequest: ref.RequestID}
}

// mark has the tags that such an object gets.
func mark(ref driver.Ref) map[string]string {
	return map[string]string{tagProvider: ref.ProviderID, tagRequest: ref.RequestID, tagVersion: markVersion}
}

// imageSelector has the tags that find an image, which serves all requests of a provider.
func imageSelector(ref driver.Ref, image driver.Image) map[string]string {
	return map[string]string{tagProvider: ref.ProviderID, tagImage: image.Key()}
}

// imageMark has the tags that an image gets.
func imageMark(ref driver.Ref, image driver.Image) map[string]string {
	return map[string]string{tagProvider: ref.ProviderID, tagImage: image.Key(), tagVersion: markVersion}
}

// refOf reads the mark; false says that the object is not a machine's part of this provider.
func refOf(providerID string, tags map[string]string) (driver.Ref, bool) {
	ref := driver.Ref{ProviderID: tags[tagProvider], RequestID: tags[tagRequest]}

	return ref, ref.ProviderID == providerID && ref.RequestID != ""
}
