#!/bin/bash
# private-libvirtd.sh DIR CMD... runs CMD beside a libvirtd of its own and returns CMD's exit status.
#
# The daemon, its guests, networks and firewall rules live in mount, network and process namespaces of their own and keep their
# files under DIR; when CMD ends, every process of theirs ends. Inside, it is qemu:///system. From outside it is
# qemu+unix:///system?socket=DIR/run/libvirt-sock. DIR is left behind for a look at DIR/log/libvirtd.log.
#
# It needs root, and changes nothing on the machine but for empty folders that libvirt's packages make as well.
set -euo pipefail

fail() { echo "private-libvirtd.sh: $*" >&2; exit 2; }

[ $# -ge 2 ] || fail "usage: private-libvirtd.sh DIR CMD..."
[ "$(id -u)" = 0 ] || fail "must be run as root: it makes namespaces and mounts"

for program in libvirtd virsh qemu-img qemu-system-x86_64 dnsmasq iptables unshare setsid ip; do
	PATH=$PATH:/usr/sbin:/sbin command -v "$program" >/dev/null ||
		fail "$program is missing; on Debian and Ubuntu: apt-get install --no-install-recommends" \
			"libvirt0 libvirt-daemon libvirt-clients qemu-system-x86 qemu-utils ovmf dnsmasq-base iptables iproute2"
done

dir=$(realpath -m "$1")
shift

# Guests run as root and keep their files' owners: nothing else is in this namespace that could be protected from them.
mkdir -p "$dir"/{etc,run,lib,log/qemu,cache,swtpm-localca,swtpm-log} /etc/libvirt /run/libvirt /var/lib/libvirt /var/log/libvirt /var/cache/libvirt \
	/var/lib/swtpm-localca /var/log/swtpm
cat >"$dir/etc/qemu.conf" <<-'END'
	user = "root"
	group = "root"
	dynamic_ownership = 0
	remember_owner = 0
	security_driver = "none"
	stdio_handler = "file"
	namespaces = []
	cgroup_controllers = []
	swtpm_user = "root"
	swtpm_group = "root"
END
cat >"$dir/etc/libvirtd.conf" <<-'END'
	auth_unix_ro = "none"
	auth_unix_rw = "none"
	unix_sock_group = "root"
	log_outputs = "2:file:/var/log/libvirt/libvirtd.log"
END

# libvirtd looks its compiled-in user up although it is not used.
cp /etc/passwd /etc/group "$dir/"
grep -q '^libvirt-qemu:' "$dir/group" || echo 'libvirt-qemu:x:64055:' >>"$dir/group"
grep -q '^kvm:' "$dir/group" || echo 'kvm:x:64056:' >>"$dir/group"
grep -q '^libvirt-qemu:' "$dir/passwd" || echo 'libvirt-qemu:x:64055:64055::/var/lib/libvirt:/usr/sbin/nologin' >>"$dir/passwd"

export PRIVATE_LIBVIRTD_DIR=$dir
exec unshare --mount --net --pid --fork --kill-child --mount-proc --propagation private -- bash -euc '
	export PATH=$PATH:/usr/sbin:/sbin
	for pair in etc:/etc/libvirt run:/run/libvirt lib:/var/lib/libvirt log:/var/log/libvirt cache:/var/cache/libvirt \
		swtpm-localca:/var/lib/swtpm-localca swtpm-log:/var/log/swtpm passwd:/etc/passwd group:/etc/group; do
		mount --bind "$PRIVATE_LIBVIRTD_DIR/${pair%%:*}" "${pair#*:}"
	done
	mount -t sysfs sysfs /sys 2>/dev/null || true # shows the interfaces of this namespace
	# A device without the instructions behind it is no KVM that runs machines with this processor. libvirt asks QEMU again before
	# each call as long as it could open the device: what stands in for it is a file that cannot be written.
	if [ -e /dev/kvm ] && ! grep -qwE "vmx|svm" /proc/cpuinfo && [ "$(uname -m)" = x86_64 ]; then
		: >"$PRIVATE_LIBVIRTD_DIR/no-kvm"
		mount --bind "$PRIVATE_LIBVIRTD_DIR/no-kvm" /dev/kvm
		mount -o remount,bind,ro /dev/kvm
	fi
	ip link set lo up
	rm -rf /run/libvirt/*
	# In a session of its own, so that Ctrl-C on the terminal is for CMD alone.
	setsid libvirtd -p /run/libvirt/libvirtd.pid &
	for _ in $(seq 300); do
		if virsh -c qemu:///system version >/dev/null 2>&1; then up=1; break; fi
		sleep 0.1
	done
	if [ -z "${up:-}" ]; then
		echo "private-libvirtd.sh: libvirtd does not answer; the end of its log:" >&2
		tail -n 20 /var/log/libvirt/libvirtd.log >&2
		exit 2
	fi
	# Not the last command, which bash would turn itself into: somebody has to reap the guests that end.
	"$@" || exit $?
	exit 0
' private-libvirtd "$@"
