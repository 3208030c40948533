// Package apiserver is a Kubernetes API server in memory, for clients that cannot tell: client-go, its informers, generated clientsets.
//
// It is made of the real server's own libraries (the request handlers and the registry of k8s.io/apiserver, the custom resources of
// k8s.io/apiextensions-apiserver) over a database in memory, without sockets, so that it runs inside a bubble of testing/synctest.
// What the cluster does with the objects is brought by others: controllers that are clients (Server.Admin), webhooks
// (Server.AddHook) and aggregated API groups (Server.Serve).
//
// Every request of a client is a call in the books of package ledger, under the verb and the resource ("create virtualmachines",
// "update virtualmachines/status", "watch pods", "get /version").
//
// Not modelled: controllers of Kubernetes itself (there is no garbage collector, nothing binds, schedules or finalizes), validation of
// built-in kinds beyond their metadata and what must not change, tables, protobuf of custom resources, conversion webhooks,
// the watch cache, the time to live of events, priority and fairness.
package apiserver
