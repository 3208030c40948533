#!/usr/bin/env bash
# Installs what the tests and the lab with a real libvirtd and real guests need, on Debian or Ubuntu. It says what it
# installs before it does, and does nothing when all is there. It starts no daemon and changes no configuration.
set -euo pipefail

packages=(
	libvirt0 libvirt-daemon libvirt-clients # the hypervisor's daemon, its library for the provider, and virsh
	qemu-system-x86 qemu-utils ovmf         # guests, disk images, UEFI firmware
	qemu-system-arm qemu-efi-aarch64        # the same for arm64, whose domains are defined and started, but not booted
	swtpm swtpm-tools                       # their TPMs
	dnsmasq-base iptables iproute2          # networks of the guests
	util-linux procps                       # namespaces for a private daemon, and its processes
	dbus-daemon polkitd                     # what a daemon asks about rights
	mtools xorriso xz-utils                 # the guests' boot images, with the boot loaders below
	syslinux syslinux-common systemd-boot-efi
)

missing=()
for package in "${packages[@]}"; do
	dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done

[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null || { echo "setup: run as root, or install sudo; missing: ${missing[*]}" >&2; exit 1; }
	as_root=(sudo --preserve-env=DEBIAN_FRONTEND)
fi

echo "setup: installing with apt-get: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}" </dev/null >/dev/null
