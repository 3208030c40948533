package omni

import (
	"slices"

	"github.com/cosi-project/runtime/pkg/resource"
	"github.com/cosi-project/runtime/pkg/resource/meta"
	"github.com/siderolabs/omni/client/pkg/omni/resources/auth"
	"github.com/siderolabs/omni/client/pkg/omni/resources/common"
	"github.com/siderolabs/omni/client/pkg/omni/resources/k8s"
	"github.com/siderolabs/omni/client/pkg/omni/resources/oidc"
	"github.com/siderolabs/omni/client/pkg/omni/resources/omni"
	registered "github.com/siderolabs/omni/client/pkg/omni/resources/registry"
	"github.com/siderolabs/omni/client/pkg/omni/resources/siderolink"
	"github.com/siderolabs/omni/client/pkg/omni/resources/system"
	"github.com/siderolabs/omni/client/pkg/omni/resources/virtual"
)

// permission is the role that each use of a kind of resource needs.
type permission struct {
	read Role
	// write is the role that changes need; writable says which of them there are at all.
	write    Role
	writable []verb
}

// signedReadable are the kinds that every caller with a valid signature may read.
var signedReadable = []resource.Type{
	meta.NamespaceType, meta.ResourceDefinitionType,
	omni.FeaturesConfigType, omni.TalosExtensionsType, omni.TalosVersionType, omni.KubernetesVersionType,
	omni.InstallationMediaType, omni.OngoingTaskType, omni.MachineStatusMetricsType, omni.NotificationType,
	omni.ClusterMetricsType, omni.ClusterStatusMetricsType,
	system.SysVersionType,
	virtual.AdvertisedEndpointsType, virtual.CurrentUserType, virtual.ClusterPermissionsType, virtual.QuirksType,
	virtual.PermissionsType,
	auth.AuthConfigType,
}

// providerReadable are the kinds outside the infra-provider namespaces that an infra provider may read.
var providerReadable = []resource.Type{omni.MachineType, siderolink.APIConfigType, siderolink.ConnectionParamsType}

// adminOnly are the kinds that only an administrator may read.
var adminOnly = []resource.Type{
	auth.UserType, auth.IdentityType, auth.PublicKeyType, auth.AccessPolicyType, auth.SAMLLabelRuleType, auth.SAMLAssertionType,
	auth.IdentityStatusType, auth.ServiceAccountStatusType, auth.IdentityLastActiveType, auth.PublicKeyLastActiveType,
	siderolink.JoinTokenType, siderolink.DefaultJoinTokenType,
}

// closed are the kinds that nobody may reach from outside: they hold secrets.
var closed = []resource.Type{
	siderolink.MachineJoinConfigType, siderolink.ConfigType, siderolink.NodeUniqueTokenType, siderolink.JoinTokenUsageType,
	siderolink.PendingMachineStatusType,
	omni.ClusterSecretsType, omni.ClusterMachineSecretsType, omni.ClusterMachineConfigType, omni.KubeconfigType,
	omni.TalosConfigType, omni.ClusterMachineEncryptionKeyType, omni.ImportedClusterSecretsType,
	oidc.JWTPublicKeyType, system.DBVersionType, system.CertRefreshTickType, k8s.KubernetesResourceType,
}

var allChanges = []verb{verbCreate, verbUpdate, verbDestroy}

// permissionOf returns what a kind of resource outside the infra-provider namespaces needs, or false if nobody may reach it.
func permissionOf(typ resource.Type) (permission, bool) {
	switch {
	case typ == auth.EulaAcceptanceType:
		return permission{writable: []verb{verbCreate}}, true
	case slices.Contains(signedReadable, typ):
		return permission{}, true
	case slices.Contains(providerReadable, typ):
		return permission{read: RoleInfraProvider, write: RoleInfraProvider}, true
	case slices.Contains(closed, typ):
		return permission{}, false
	case slices.Contains(adminOnly, typ):
		p := permission{read: RoleAdmin, write: RoleAdmin}

		switch {
		case slices.Contains(common.UserManagedResourceTypes, typ):
			p.writable = allChanges
		case typ == siderolink.JoinTokenType:
			// Only the management service makes them.
			p.writable = []verb{verbUpdate, verbDestroy}
		}

		return p, true
	case slices.Contains(common.UserManagedResourceTypes, typ):
		return permission{read: RoleReader, write: RoleOperator, writable: allChanges}, true
	case typ == siderolink.LinkType:
		return permission{read: RoleReader, write: RoleOperator, writable: []verb{verbDestroy}}, true
	case isRegistered(typ):
		return permission{read: RoleReader, write: RoleReader}, true
	default:
		return permission{}, false
	}
}

func isRegistered(typ resource.Type) bool {
	return slices.ContainsFunc(registered.Resources, func(r meta.ResourceWithRD) bool {
		return r.ResourceDefinition().Type == typ
	})
}
