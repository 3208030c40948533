package oxide

import (
	"net/http"
	"net/url"
	"regexp"
	"strings"
)

var versionForm = regexp.MustCompile(`^[0-9]{10}\.0\.0$`)

// route is one operation of the API.
type route struct {
	method string
	// segments are those of the path; one in braces stands for any.
	segments []string
	op       string
	// object is the part of the path that names what the call is about; the body does if it is empty.
	object string
	handle func(c *call) (status int, body any, err error)
	// long operations let their time pass by themselves.
	long bool
	// open operations need no token.
	open bool
	bulk bool
}

func (r *route) bodyCap() int64 {
	if r.bulk {
		return maxBulkBody
	}

	return maxBody
}

type routes []*route

// find returns the operation of a request and the parts of its path; nil if there is none.
func (all routes) find(req *http.Request) (*route, func(name string) string) {
	segments := strings.Split(strings.TrimPrefix(req.URL.EscapedPath(), "/"), "/")

	for _, r := range all {
		if r.method == req.Method && r.matches(segments) {
			return r, func(name string) string { return r.part(segments, name) }
		}
	}

	return nil, nil
}

func (r *route) matches(segments []string) bool {
	if len(segments) != len(r.segments) {
		return false
	}

	for i, s := range r.segments {
		if s[0] != '{' && s != segments[i] {
			return false
		}
	}

	return true
}

func (r *route) part(segments []string, name string) string {
	for i, s := range r.segments {
		if s == "{"+name+"}" {
			part, err := url.PathUnescape(segments[i])
			if err != nil {
				return segments[i]
			}

			return part
		}
	}

	return ""
}

// op is an operation by its id, whose path names the object of the call last, or nowhere.
func op(id, method, path string, handle func(c *call) (int, any, error)) *route {
	r := &route{op: id, method: method, segments: strings.Split(path, "/")[1:], handle: handle}

	for _, s := range r.segments {
		if s[0] == '{' {
			r.object = strings.Trim(s, "{}")
		}
	}

	return r
}

// saga is an operation that lets its time pass by itself.
func saga(id, method, path string, handle func(c *call) (int, any, error)) *route {
	r := op(id, method, path, handle)
	r.long = true

	return r
}

const (
	get    = http.MethodGet
	post   = http.MethodPost
	put    = http.MethodPut
	remove = http.MethodDelete
)

var operations = func() routes {
	ping := op("ping", get, "/v1/ping", (*call).ping)
	ping.open = true
	bulk := op("disk_bulk_write_import", post, "/v1/disks/{disk}/bulk-write", (*call).bulkWrite)
	bulk.bulk = true

	all := routes{
		ping, bulk,
		op("current_user_view", get, "/v1/me", (*call).me),
		op("utilization_view", get, "/v1/utilization", (*call).utilization),

		op("project_list", get, "/v1/projects", (*call).listProjects),
		op("project_create", post, "/v1/projects", (*call).createProject),
		op("project_view", get, "/v1/projects/{project}", (*call).viewProject),
		op("project_update", put, "/v1/projects/{project}", (*call).updateProject),
		op("project_delete", remove, "/v1/projects/{project}", (*call).deleteProject),

		op("image_list", get, "/v1/images", (*call).listImages),
		saga("image_create", post, "/v1/images", (*call).createImage),
		op("image_view", get, "/v1/images/{image}", (*call).viewImage),
		op("image_delete", remove, "/v1/images/{image}", (*call).deleteImage),
		op("image_promote", post, "/v1/images/{image}/promote", (*call).promoteImage),
		op("image_demote", post, "/v1/images/{image}/demote", (*call).demoteImage),

		op("snapshot_list", get, "/v1/snapshots", (*call).listSnapshots),
		saga("snapshot_create", post, "/v1/snapshots", (*call).createSnapshot),
		op("snapshot_view", get, "/v1/snapshots/{snapshot}", (*call).viewSnapshot),
		saga("snapshot_delete", remove, "/v1/snapshots/{snapshot}", (*call).deleteSnapshot),

		op("disk_list", get, "/v1/disks", (*call).listDisks),
		saga("disk_create", post, "/v1/disks", (*call).createDisk),
		op("disk_view", get, "/v1/disks/{disk}", (*call).viewDisk),
		saga("disk_delete", remove, "/v1/disks/{disk}", (*call).deleteDisk),
		op("disk_bulk_write_import_start", post, "/v1/disks/{disk}/bulk-write-start", (*call).startBulkWrite),
		op("disk_bulk_write_import_stop", post, "/v1/disks/{disk}/bulk-write-stop", (*call).stopBulkWrite),
		saga("disk_finalize_import", post, "/v1/disks/{disk}/finalize", (*call).finalizeImport),

		op("instance_list", get, "/v1/instances", (*call).listInstances),
		saga("instance_create", post, "/v1/instances", (*call).createInstance),
		op("instance_view", get, "/v1/instances/{instance}", (*call).viewInstance),
		op("instance_update", put, "/v1/instances/{instance}", (*call).updateInstance),
		saga("instance_delete", remove, "/v1/instances/{instance}", (*call).deleteInstance),
		saga("instance_start", post, "/v1/instances/{instance}/start", (*call).startInstance),
		saga("instance_stop", post, "/v1/instances/{instance}/stop", (*call).stopInstance),
		saga("instance_reboot", post, "/v1/instances/{instance}/reboot", (*call).rebootInstance),
		op("instance_disk_list", get, "/v1/instances/{instance}/disks", (*call).listInstanceDisks),
		op("instance_disk_attach", post, "/v1/instances/{instance}/disks/attach", (*call).attachDisk),
		op("instance_disk_detach", post, "/v1/instances/{instance}/disks/detach", (*call).detachDisk),
		op("instance_external_ip_list", get, "/v1/instances/{instance}/external-ips", (*call).listExternalIPs),
		op("instance_ephemeral_ip_attach", post, "/v1/instances/{instance}/external-ips/ephemeral", (*call).attachEphemeral),
		op("instance_ephemeral_ip_detach", remove, "/v1/instances/{instance}/external-ips/ephemeral", (*call).detachEphemeral),
		op("instance_ssh_public_key_list", get, "/v1/instances/{instance}/ssh-public-keys", (*call).listInstanceKeys),
		op("instance_serial_console", get, "/v1/instances/{instance}/serial-console", (*call).serialConsole),

		op("instance_network_interface_list", get, "/v1/network-interfaces", (*call).listNICs),
		op("instance_network_interface_create", post, "/v1/network-interfaces", (*call).createNIC),
		op("instance_network_interface_view", get, "/v1/network-interfaces/{interface}", (*call).viewNIC),
		op("instance_network_interface_update", put, "/v1/network-interfaces/{interface}", (*call).updateNIC),
		op("instance_network_interface_delete", remove, "/v1/network-interfaces/{interface}", (*call).deleteNIC),

		op("floating_ip_list", get, "/v1/floating-ips", (*call).listFloatingIPs),
		op("floating_ip_create", post, "/v1/floating-ips", (*call).createFloatingIP),
		op("floating_ip_view", get, "/v1/floating-ips/{floating_ip}", (*call).viewFloatingIP),
		op("floating_ip_update", put, "/v1/floating-ips/{floating_ip}", (*call).updateFloatingIP),
		op("floating_ip_delete", remove, "/v1/floating-ips/{floating_ip}", (*call).deleteFloatingIP),
		op("floating_ip_attach", post, "/v1/floating-ips/{floating_ip}/attach", (*call).attachFloatingIP),
		op("floating_ip_detach", post, "/v1/floating-ips/{floating_ip}/detach", (*call).detachFloatingIP),

		op("ip_pool_list", get, "/v1/ip-pools", (*call).listPools),
		op("ip_pool_view", get, "/v1/ip-pools/{pool}", (*call).viewPool),

		op("vpc_list", get, "/v1/vpcs", (*call).listVPCs),
		op("vpc_create", post, "/v1/vpcs", (*call).createVPC),
		op("vpc_view", get, "/v1/vpcs/{vpc}", (*call).viewVPC),
		op("vpc_delete", remove, "/v1/vpcs/{vpc}", (*call).deleteVPC),
		op("vpc_subnet_list", get, "/v1/vpc-subnets", (*call).listSubnets),
		op("vpc_subnet_view", get, "/v1/vpc-subnets/{subnet}", (*call).viewSubnet),

		op("current_user_ssh_key_list", get, "/v1/me/ssh-keys", (*call).listKeys),
		op("current_user_ssh_key_create", post, "/v1/me/ssh-keys", (*call).createKey),
		op("current_user_ssh_key_view", get, "/v1/me/ssh-keys/{ssh_key}", (*call).viewKey),
		op("current_user_ssh_key_delete", remove, "/v1/me/ssh-keys/{ssh_key}", (*call).deleteKey),
	}

	return append(append(all, antiAffinity.routes("/v1/anti-affinity-groups")...), affinity.routes("/v1/affinity-groups")...)
}()

// Operations returns the ids of the operations that are modelled by method and path, with a star for each part of a path that varies
// ("GET /v1/disks/*").
func Operations() map[string]string {
	all := map[string]string{}

	for _, r := range operations {
		var b strings.Builder

		for _, s := range r.segments {
			if s[0] == '{' {
				s = "*"
			}

			b.WriteString("/" + s)
		}

		all[r.method+" "+b.String()] = r.op
	}

	return all
}
