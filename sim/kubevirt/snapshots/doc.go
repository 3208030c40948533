// Package snapshots is the snapshot controller of a cluster with the sidecars of its CSI drivers: VolumeSnapshots get a
// VolumeSnapshotContent and become ready to use, or say why not. Rules, names, reasons and messages are those of
// kubernetes-csi/external-snapshotter v8.
package snapshots
