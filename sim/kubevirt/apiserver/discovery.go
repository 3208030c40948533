package apiserver

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
)

// serverVersion is what the server says it is: the release whose libraries it is made of.
var serverVersion = version.Info{
	Major: "1", Minor: "36", GitVersion: "v1.36.3", GitTreeState: "clean", GoVersion: "go1.26.4", Compiler: "gc", Platform: "linux/amd64",
}

// preferVersion orders versions by how Kubernetes prefers them.
func preferVersion(a, b string) int { return -version.CompareKubeAwareVersionStrings(a, b) }

// discovery answers what is not about a resource.
func (s *Server) discovery(w http.ResponseWriter, r *http.Request) {
	path := strings.Trim(r.URL.Path, "/")
	parts := strings.Split(path, "/")

	switch {
	case r.Method != http.MethodGet:
		http.Error(w, "405: Method Not Allowed", http.StatusMethodNotAllowed)
	case path == "readyz", path == "livez", path == "healthz":
		w.Header().Set("Content-Type", "text/plain; charset=utf-8")
		_, _ = w.Write([]byte("ok")) // Who does not listen any more does not need to know.
	case path == "version":
		writeJSON(w, serverVersion)
	case path == "api":
		writeJSON(w, metav1.APIVersions{
			TypeMeta: metav1.TypeMeta{Kind: "APIVersions"}, Versions: []string{"v1"},
			ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{{ClientCIDR: "0.0.0.0/0", ServerAddress: host}},
		})
	case path == "apis":
		list := metav1.APIGroupList{TypeMeta: metav1.TypeMeta{Kind: "APIGroupList", APIVersion: "v1"}}
		for _, name := range s.groupNames() {
			list.Groups = append(list.Groups, s.group(name))
		}

		writeJSON(w, list)
	case parts[0] == "apis" && len(parts) == 2 && parts[1] != "" && len(s.versions(parts[1])) > 0:
		group := s.group(parts[1])
		group.TypeMeta = metav1.TypeMeta{Kind: "APIGroup", APIVersion: "v1"}
		writeJSON(w, group)
	case parts[0] == "apis" && len(parts) == 3 && slices.Contains(s.versions(parts[1]), parts[2]):
		writeJSON(w, s.resourceList(schema.GroupVersion{Group: parts[1], Version: parts[2]}))
	case path == "api/v1":
		writeJSON(w, s.resourceList(schema.GroupVersion{Version: "v1"}))
	default:
		http.NotFound(w, r)
	}
}

func writeJSON(w http.ResponseWriter, answer any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer) // Who does not listen any more does not need to know.
}

// groupNames returns the groups beside the core one.
func (s *Server) groupNames() []string {
	s.mu.RLock()
	defer s.mu.RUnlock()

	found := map[string]bool{}

	for of := range s.resources {
		found[of.Group] = true
	}

	for of := range s.groups {
		found[of.Group] = true
	}

	delete(found, "")

	return sortedKeys(found)
}

func (s *Server) group(name string) metav1.APIGroup {
	group := metav1.APIGroup{Name: name}

	for _, v := range s.versions(name) {
		group.Versions = append(group.Versions, metav1.GroupVersionForDiscovery{
			GroupVersion: schema.GroupVersion{Group: name, Version: v}.String(), Version: v,
		})
	}

	group.PreferredVersion = group.Versions[0]

	return group
}

func (s *Server) resourceList(of schema.GroupVersion) metav1.APIResourceList {
	s.mu.RLock()
	defer s.mu.RUnlock()

	list := metav1.APIResourceList{
		TypeMeta: metav1.TypeMeta{Kind: "APIResourceList", APIVersion: "v1"}, GroupVersion: of.String(), APIResources: []metav1.APIResource{},
	}

	for resource, r := range s.resources {
		if resource.GroupVersion() != of {
			continue
		}

		list.APIResources = append(list.APIResources, r.info)

		for name := range r.subresources {
			list.APIResources = append(list.APIResources, metav1.APIResource{
				Name: r.info.Name + "/" + name, Namespaced: r.info.Namespaced, Kind: r.info.Kind, Verbs: subresourceVerbs,
			})
		}
	}

	if g := s.groups[of]; g != nil {
		list.APIResources = append(list.APIResources, g.resources...)
	}

	slices.SortFunc(list.APIResources, func(a, b metav1.APIResource) int { return strings.Compare(a.Name, b.Name) })

	return list
}
