// Package deploy has the manifests that the provider is installed with, for tests that run under the rights which they grant.
package deploy

import _ "embed"

// RBAC is the account of the provider and its rights.
//
//go:embed rbac.yaml
var RBAC []byte

// Account and Namespace are the names of the account, and of the namespace of machines, in the manifests.
const (
	Account   = "omni-infra-provider-kubevirt"
	Namespace = "omni-machines"
)
