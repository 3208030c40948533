package conformance

// Feature is something that a provider may or may not have. All that is no feature, every provider must have.
type Feature string

// The features.
const (
	// DerivedUUID providers choose the SMBIOS UUID of their machines and tell Omni before they boot.
	DerivedUUID Feature = "derived-uuid"
	// Power providers switch machines off and on as the annotation omni-infra.dev/power of the request says.
	Power Feature = "power"
	// Reboot providers restart a machine once for each new value of the annotation omni-infra.dev/reboot-id of its request.
	Reboot Feature = "reboot"
	// Replace providers notice that a machine has vanished from the cloud and make Omni replace it.
	Replace Feature = "replace"
)

var features = []Feature{DerivedUUID, Power, Reboot, Replace}
