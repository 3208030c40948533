#!/usr/bin/env bash
# Builds kube-apiserver and etcd from their Go modules, once for each state of tools/kube/apiserver, and prints the folder
# that they lie in. About ten minutes on two idle cores; what is there already is used again. The folder is outside of the
# tree, so that every checkout shares it; removing it is always safe, and those that nobody has asked for in 30 days are removed.
set -euo pipefail
cd "$(dirname "$0")/apiserver"

kubernetes=$(GOWORK=off go list -m -f '{{.Version}}' k8s.io/kubernetes)
key=$({ go version; cat go.mod go.sum ../build.sh; } | sha256sum | cut -c 1-16)
caches=${XDG_CACHE_HOME:-$HOME/.cache}/omni-infra-providers
folder=$caches/kube-$kubernetes-$key

if [ ! -x "$folder/kube-apiserver" ] || [ ! -x "$folder/etcd" ]; then
	echo "kube: building etcd and kube-apiserver $kubernetes, about ten minutes on two idle cores" >&2
	mkdir -p "$folder"
	new=$(mktemp -d "$folder/new.XXXXXX")
	trap 'rm -rf "$new"' EXIT

	# Without these, /version says nothing that a client could use.
	IFS=. read -r major minor _ <<<"${kubernetes#v}"
	version=k8s.io/component-base/version
	ldflags="-s -w -X $version.gitVersion=$kubernetes -X $version.gitMajor=$major -X $version.gitMinor=$minor -X $version.gitTreeState=clean"

	# Two compilers at a time need 4 GiB; the flags of the workspace stay, so that packages compiled for it are used. With less
	# collection of garbage the compiler takes a third less time.
	GOWORK=off GOGC=${GOGC:-400} go build -p "${KUBE_BUILD_JOBS:-2}" -ldflags "$ldflags" -o "$new/" go.etcd.io/etcd/server/v3 k8s.io/kubernetes/cmd/kube-apiserver >&2
	[ -e "$new/etcd" ] || mv "$new/server" "$new/etcd"
	mv "$new/etcd" "$new/kube-apiserver" "$folder/"
fi

# The time of a folder is when it was asked for last.
touch "$folder"
find "$caches" -mindepth 1 -maxdepth 1 -type d -name 'kube-v*' -mtime +30 -exec rm -rf {} +

echo "$folder"
