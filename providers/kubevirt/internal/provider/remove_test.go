package provider_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/omni-infra/omni-infra-providers/providers/kubevirt/internal/machine"
	"github.com/omni-infra/omni-infra-providers/shared/driver"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt"
	"github.com/omni-infra/omni-infra-providers/sim/kubevirt/apiserver"
)

func TestRemovalThatARuleOfTheClusterRefusesGoesOnOnceItIsLifted(t *testing.T) {
	bubble(t, func(t *testing.T) {
		l := newLab(t, kubevirt.Options{Enter: keepImages})
		l.mustProvision("r-1")

		protected := true

		l.Server().AddHook(apiserver.Hook{
			Name: "protect.example.org", Resource: schema.GroupResource{Group: "kubevirt.io", Resource: "virtualmachines"},
			Operations: []apiserver.Operation{apiserver.Delete},
			Validate: func(context.Context, *apiserver.Review) error {
				if protected {
					return apiserver.Refuse(403, metav1.StatusReasonForbidden, "it is protected")
				}

				return nil
			},
		})

		o := l.remove("r-1", time.Minute)
		require.Equal(t, driver.KindTransient, driver.KindOf(o.err), "%v", o.said)
		require.ErrorContains(t, o.err, "it is protected")
		assert.NotContains(t, o.err.Error(), "machine class")

		protected = false

		l.mustRemove("r-1")
		assert.Empty(t, l.left())
	})
}
