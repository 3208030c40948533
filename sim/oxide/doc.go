// Package oxide is an Oxide rack that lives in memory: the API of its control plane, Nexus, as an http.Handler and as an
// http.RoundTripper without sockets, so that the real client (github.com/oxidecomputer/oxide.go) works against it unchanged, on
// the fake clock of testing/synctest too. Shapes, names and limits are those of the API's own OpenAPI document; states and the
// texts of errors follow the control plane's source (github.com/oxidecomputer/omicron). README.md says what is modelled and what is not.
package oxide
