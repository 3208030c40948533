module github.com/omni-infra/omni-infra-providers/providers/oxide

go 1.26.4

require (
	github.com/cosi-project/runtime v1.16.2
	github.com/omni-infra/omni-infra-providers/conformance v0.0.0
	github.com/omni-infra/omni-infra-providers/shared v0.0.0
	github.com/omni-infra/omni-infra-providers/sim v0.0.0
	github.com/siderolabs/omni/client v1.9.3
	github.com/spf13/pflag v1.0.10
	github.com/stretchr/testify v1.12.1
	go.uber.org/zap v1.28.0
)

require github.com/oxidecomputer/oxide.go v0.10.0

replace github.com/omni-infra/omni-infra-providers/shared => ../../shared

replace github.com/omni-infra/omni-infra-providers/sim => ../../sim

replace github.com/omni-infra/omni-infra-providers/conformance => ../../conformance
