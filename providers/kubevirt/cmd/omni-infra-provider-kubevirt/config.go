package main

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/cluster"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/runner"
)

// config is the section "kubevirt" of the configuration file. How the cluster is reached, and as whom, is said where the provider runs,
// never by Omni: a cluster's credentials are not Omni's to choose from.
type config struct {
	Kubeconfig        string   `json:"kubeconfig_file" doc:"Kubeconfig of the cluster; without one $KUBECONFIG, else ~/.kube/config if it exists, else the pod's service account." local:"true"`
	Context           string   `json:"kubeconfig_context" doc:"Context of the kubeconfig, its current one if absent." local:"true"`
	TokenFile         string   `json:"token_file" doc:"File with a bearer token, instead of the kubeconfig's credentials. It is read again when it is rotated." local:"true"`
	ImpersonateUser   string   `json:"as" doc:"User to impersonate in all calls." local:"true"`
	ImpersonateGroups []string `json:"as_groups" doc:"Groups to impersonate, with a user." local:"true"`
	Namespaces        []string `json:"namespaces" doc:"Namespaces that machines may be made in; the first is that of classes that name none. One stays as long as there are machines in it." default:"[default]" min:"1" max:"100"`
	DataVolumeMode    string   `json:"data_volume_mode" doc:"Volume mode of disks whose class names none: Block or Filesystem; CDI's choice if absent." pattern:"^(Block|Filesystem)?$"`
	StorageClassName  string   `json:"storage_class_name" doc:"Storage class of disks whose class names none; the cluster's default if absent." max:"253"`
	ImageCertificates string   `json:"image_cert_config_map" doc:"ConfigMap in the machines' namespaces with the certificates, in PEM, of an authority of your own that signs for the image factory; none if absent." max:"253" pattern:"^([a-z0-9]([a-z0-9.-]*[a-z0-9])?)?$"`
	KeepImages        bool     `json:"keep_images" doc:"Keep boot images in the cluster for good, though no machine is made from them." default:"false"`
	ImageMaxAge       int      `json:"image_max_age_hours" doc:"For how many hours boot images from which no machine is made stay in the cluster." default:"24" max:"8760"`
	QPS               int      `json:"qps" doc:"Calls to the Kubernetes API in a second, on average." default:"50" min:"1" max:"10000"`
	Burst             int      `json:"burst" doc:"Calls to the Kubernetes API at once, after a pause." default:"100" min:"1" max:"10000"`
	CallTimeout       int      `json:"call_timeout_seconds" doc:"How long a call to the Kubernetes API may take." default:"20" min:"1" max:"60"`
}

// driverConfig is what the driver is made of.
func (c config) driverConfig() (provider.Config, error) {
	if len(c.Namespaces) == 0 {
		return provider.Config{}, errors.New("--namespace is empty: want a namespace that machines may be made in")
	}

	for i, namespace := range c.Namespaces {
		if problems := validation.IsDNS1123Label(namespace); len(problems) > 0 {
			return provider.Config{}, fmt.Errorf("--namespace %q is no namespace: %s", namespace, problems[0])
		}

		if slices.Contains(c.Namespaces[:i], namespace) {
			return provider.Config{}, fmt.Errorf("--namespace %q is given twice", namespace)
		}
	}

	if !slices.Contains([]string{"", "Block", "Filesystem"}, c.DataVolumeMode) {
		return provider.Config{}, fmt.Errorf("--data-volume-mode %q: want Block or Filesystem", c.DataVolumeMode)
	}

	if c.ImageCertificates != "" && len(validation.IsDNS1123Subdomain(c.ImageCertificates)) > 0 {
		return provider.Config{}, fmt.Errorf("--image-cert-config-map %q is no name of a ConfigMap", c.ImageCertificates)
	}

	if c.QPS < 1 || c.Burst < 1 {
		return provider.Config{}, errors.New("--kube-api-qps and --kube-api-burst: want 1 or more")
	}

	return provider.Config{
		Cluster: cluster.Config{
			Kubeconfig: c.Kubeconfig, Context: c.Context, TokenFile: c.TokenFile,
			ImpersonateUser: c.ImpersonateUser, ImpersonateGroups: c.ImpersonateGroups,
			QPS: float32(c.QPS), Burst: c.Burst, CallTimeout: time.Duration(c.CallTimeout) * time.Second,
			UserAgent: "omni-infra-provider-kubevirt/" + runner.Version(),
		},
		Operator: machine.Operator{
			Namespaces: c.Namespaces, VolumeMode: c.DataVolumeMode, StorageClassName: c.StorageClassName,
			ImageCertConfigMap: c.ImageCertificates,
		},
		Version:     runner.Version(),
		KeepImages:  c.KeepImages,
		ImageMaxAge: imageMaxAge(c.ImageMaxAge),
	}, nil
}

// imageMaxAge is never zero, which would be the default.
func imageMaxAge(hours int) time.Duration {
	if hours == 0 {
		return -1
	}

	return time.Duration(hours) * time.Hour
}
