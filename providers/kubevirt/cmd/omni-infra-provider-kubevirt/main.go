// Command omni-infra-provider-kubevirt makes machines for Omni in a Kubernetes cluster with KubeVirt.
package main

import (
	"context"
	_ "embed"

	"github.com/spf13/pflag"
	"go.uber.org/zap"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/provider"
	"github.com/omni-infra/omni-infra-providers/shared/classdata"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/shared/runner"
)

//go:embed icon.svg
var icon string

func main() {
	runner.Main(runner.Program[config]{
		Name:        "kubevirt",
		Title:       "KubeVirt",
		Description: "Virtual machines in a Kubernetes cluster with KubeVirt.",
		Icon:        icon,
		Schema:      machine.Schema(),
		Validate: func(data string) error {
			_, err := classdata.Decode[machine.ClassData](data)

			return err
		},
		Env: map[string]string{
			"kubeconfig-file": "KUBECONFIG_FILE", "namespace": "KUBEVIRT_NAMESPACE", "data-volume-mode": "DATA_VOLUME_MODE",
		},
		Flags: flags,
		New:   newDriver,
	})
}

func flags(f *pflag.FlagSet, c *config) {
	f.StringVar(&c.Kubeconfig, "kubeconfig-file", c.Kubeconfig, "kubeconfig of the cluster; without one $KUBECONFIG, else ~/.kube/config if it exists, else the pod's service account ($KUBECONFIG_FILE)")
	f.StringVar(&c.Context, "kubeconfig-context", c.Context, "context of the kubeconfig, its current one by default")
	f.StringVar(&c.TokenFile, "token-file", c.TokenFile, "file with a bearer token, instead of the kubeconfig's credentials; it is read again when it is rotated")
	f.StringVar(&c.ImpersonateUser, "as", c.ImpersonateUser, "user to impersonate in all calls")
	f.StringSliceVar(&c.ImpersonateGroups, "as-group", c.ImpersonateGroups, "group to impersonate, given once for each; it needs --as")
	f.StringSliceVar(&c.Namespaces, "namespace", c.Namespaces, "namespace that machines may be made in, given once for each; the first is that of classes that name none ($KUBEVIRT_NAMESPACE)")
	f.StringVar(&c.DataVolumeMode, "data-volume-mode", c.DataVolumeMode, "volume mode of disks whose class names none, Block or Filesystem; CDI's choice when empty ($DATA_VOLUME_MODE)")
	f.StringVar(&c.StorageClassName, "storage-class", c.StorageClassName, "storage class of disks whose class names none; the cluster's default when empty")
	f.StringVar(&c.ImageCertificates, "image-cert-config-map", c.ImageCertificates, "ConfigMap in the machines' namespaces with the certificates of an authority of your own that signs for the image factory")
	f.BoolVar(&c.KeepImages, "keep-images", c.KeepImages, "keep boot images in the cluster when no machine is made from them")
	f.IntVar(&c.QPS, "kube-api-qps", c.QPS, "calls to the Kubernetes API in a second, on average")
	f.IntVar(&c.Burst, "kube-api-burst", c.Burst, "calls to the Kubernetes API at once, after a pause")
}

func newDriver(_ context.Context, c config, log *zap.Logger) (driver.Driver, func() error, error) {
	dc, err := c.driverConfig()
	if err != nil {
		return nil, nil, err
	}

	dc.Logger = log

	d, err := provider.New(dc)
	if err != nil {
		return nil, nil, err
	}

	return d, func() error { d.Close(); return nil }, nil
}
