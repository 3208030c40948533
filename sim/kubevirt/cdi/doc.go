// Package cdi plays the Containerized Data Importer v1.65 as its clients see it: DataVolumes that are imported, cloned or made blank into
// claims, with their phases, conditions, progress and errors, and its admission. Its controller is a client of a Kubernetes API server,
// simulated or real; what an import finds at its URL is a function (Options.Fetch).
//
// Rules, conditions and messages were learnt from the sources of CDI v1.65.0 (Apache-2.0): controller/datavolume, controller/import-controller
// and apiserver/webhooks. README.md says what is not modelled.
package cdi
