package conformance

import "slices"

// Feature is something that a provider may or may not have. All that is no feature, every provider must have.
type Feature string

// The features.
const (
	// DerivedUUID providers choose the SMBIOS UUID of their machines and tell Omni before they boot.
	DerivedUUID Feature = "derived-uuid"
	// MatchByToken providers write the id of the request into its machine's join token, so that no UUID has to be known.
	MatchByToken Feature = "match-by-token"
	// OldOmni providers also work with an Omni that has no join configuration for each provider.
	OldOmni Feature = "old-omni"
	// Power providers switch machines off and on as the annotation omni-infra.dev/power of the request says, or Omni's InfraMachine,
	// and report in an InfraMachineStatus what they see.
	Power Feature = "power"
	// Reboot providers restart a machine once for each new value of the annotation omni-infra.dev/reboot-id of its request.
	Reboot Feature = "reboot"
	// Console providers have a Cloud where somebody else can switch a machine off: it has the method SwitchOff(id string) error.
	Console Feature = "console"
	// Replace providers notice that a machine has vanished from the cloud and make Omni replace it.
	Replace Feature = "replace"
	// ConfigPatches providers ask Omni for config patches of each machine.
	ConfigPatches Feature = "config-patches"
	// OneAtATime providers may run in several processes, of which one acts.
	OneAtATime Feature = "one-at-a-time"
	// NextRelease providers have a Subject that can run another release: its Next.
	NextRelease Feature = "next-release"
	// LaggingLists providers have a Cloud whose lists can be made to lag behind: it has the method HideMachine(id string, lists int),
	// which leaves a machine out of so many lists.
	LaggingLists Feature = "lagging-lists"
	// Places providers make machines at several places that fail apart from each other, as hosts do. Each place has room for all machines of a
	// case. Their Cloud tells in ledger.Machine.Place where each machine is, by the names that the provider has for its places,
	// and has the methods Places() []string and CutPlace(name string, silent bool) (restore func(), err error). A place that is cut
	// off refuses all calls of the provider, or leaves them without an answer if it is to be silent; its machines run on.
	Places Feature = "places"
)

var features = []Feature{
	DerivedUUID, MatchByToken, OldOmni, Power, Reboot, Console, Replace,
	ConfigPatches, OneAtATime, NextRelease, LaggingLists, Places,
}

// Features returns all features that a provider may claim.
func Features() []Feature { return slices.Clone(features) }
