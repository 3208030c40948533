#!/usr/bin/env bash
# Installs what the tests and the lab with a real libvirtd and real guests need, on Debian or Ubuntu. It says what it
# installs before it does, and does nothing when all is there. It starts no daemon and changes no configuration.
set -euo pipefail

packages=(
	libvirt0 libvirt-daemon libvirt-clients # the hypervisor's daemon, its library for the provider, and virsh
	qemu-system-x86 qemu-utils ovmf         # guests, disk images, UEFI firmware
	dnsmasq-base iptables iproute2          # networks of the guests
	util-linux xz-utils                     # namespaces for a private daemon; images
)

missing=()
for package in "${packages[@]}"; do
	dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null | grep -qx installed || missing+=("$package")
done

as_root=()
if [ "$(id -u)" -ne 0 ]; then
	command -v sudo >/dev/null || { echo "setup: run as root, or install sudo" >&2; exit 1; }
	as_root=(sudo --preserve-env=DEBIAN_FRONTEND)
fi

if [ ${#missing[@]} -gt 0 ]; then
	echo "setup: installing with apt-get: ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	"${as_root[@]}" apt-get update -qq
	"${as_root[@]}" apt-get install -y -qq --no-install-recommends -o Dpkg::Use-Pty=0 "${missing[@]}" </dev/null >/dev/null
fi

# libvirtd looks this user up even where its configuration names another one; the daemon's packages for systems without
# systemd do not create it.
if ! id -u libvirt-qemu >/dev/null 2>&1; then
	echo "setup: adding the system user libvirt-qemu"
	getent group kvm >/dev/null || "${as_root[@]}" groupadd -r kvm
	getent group libvirt-qemu >/dev/null || "${as_root[@]}" groupadd -r libvirt-qemu
	"${as_root[@]}" useradd -r -g libvirt-qemu -G kvm -d /var/lib/libvirt -s /usr/sbin/nologin libvirt-qemu
fi
