module github.com/omni-infra/omni-infra-providers/providers/kubevirt

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

require (
	github.com/kubernetes-csi/external-snapshotter/client/v4 v4.2.0 // indirect
	go.yaml.in/yaml/v2 v2.4.4 // indirect
	k8s.io/api v0.36.3 // indirect
	k8s.io/apiextensions-apiserver v0.36.3 // indirect
	k8s.io/apimachinery v0.36.3 // indirect
	k8s.io/client-go v0.36.3 // indirect
	kubevirt.io/api v1.8.2 // indirect
	kubevirt.io/client-go v1.8.2 // indirect
	kubevirt.io/containerized-data-importer-api v1.65.0 // indirect
	sigs.k8s.io/yaml v1.6.0 // indirect
)

replace github.com/omni-infra/omni-infra-providers/shared => ../../shared

replace github.com/omni-infra/omni-infra-providers/sim => ../../sim

replace github.com/omni-infra/omni-infra-providers/conformance => ../../conformance

// client-go of KubeVirt names a version that does not exist.
exclude k8s.io/kube-openapi v0.31.0
