package ledger

// Machine is a machine as any simulated cloud can describe it to a test.
type Machine struct {
	// ID is the cloud's id, Name what users see.
	ID, Name string
	// UUID is the SMBIOS UUID.
	UUID string
	// Place is where it is, in a cloud of several places that fail apart; empty in others.
	Place string
	// Tags are the machine's labels, tags or metadata, whatever the cloud calls them.
	Tags map[string]string
	// On says whether the machine is switched on.
	On bool
	// Boots counts how often it was started or restarted.
	Boots int
}
