#!/usr/bin/env bash
# Runs every package that has tests with the build tag "real", one package at a time: they share the machine's processors
# with the guests that they boot. Arguments go to go test.
set -euo pipefail
cd "$(dirname "$0")/../.."

# Not those that are built only without the tag.
mapfile -t packages < <(grep -rlE --include='*_test.go' '^//go:build (.*[^![:alnum:]_])?real\b' . | xargs -r -n1 dirname | sort -u)
if [ ${#packages[@]} -eq 0 ]; then
	echo 'test-real: no test carries the build tag "real"' >&2
	exit 1
fi

# The programs of a Kubernetes control plane, which the tests start for themselves.
KUBE_PROGRAMS=${KUBE_PROGRAMS:-$(tools/kube/build.sh)}
export KUBE_PROGRAMS

echo "test-real: ${packages[*]}"
exec go test -tags 'libvirt_dlopen real' -count=1 -p 1 -timeout 40m "$@" "${packages[@]}"
