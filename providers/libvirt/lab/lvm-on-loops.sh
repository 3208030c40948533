#!/bin/bash
# lvm-on-loops.sh stands for the LVM tools that libvirt's logical pools call, where the kernel has no device mapper: a logical
# volume is a loop device over a sparse file. Link it to the tools' names (lvs, vgs, lvcreate, lvremove, lvchange, vgchange, vgscan, pvs).
#
# The only volume group is $LVM_ON_LOOPS_GROUP; its files are in $LVM_ON_LOOPS_DIR, and its size is LVM_ON_LOOPS_SIZE bytes, 4 GiB by default.
# These may be set in /etc/libvirt/lvm-on-loops. What it is called with is appended to the file calls in its folder.
set -euo pipefail
shopt -s nullglob

if [ -e /etc/libvirt/lvm-on-loops ]; then . /etc/libvirt/lvm-on-loops; fi
group=$LVM_ON_LOOPS_GROUP dir=$LVM_ON_LOOPS_DIR total=${LVM_ON_LOOPS_SIZE:-$((4 << 30))} extent=$((4 << 20))
mkdir -p "$dir/volumes" "/dev/$group"
echo "$(basename "$0") $*" >>"$dir/calls"

used() {
	local sum=0 file
	for file in "$dir"/volumes/*; do sum=$((sum + $(stat -c %s "$file"))); done
	echo $sum
}

fail() { echo "  $*" >&2; exit 5; }

case $(basename "$0") in
lvs)
	for file in "$dir"/volumes/*; do
		size=$(stat -c %s "$file")
		echo "  $(basename "$file")##$(stat -c uuid-%i "$file")#/dev/loops(0)#linear#1#$size#$extent#$size#-wi-a-----"
	done
	;;
vgs) echo "  $total:$((total - $(used)))" ;;
pvs) echo "  /dev/loops $group" ;;
lvcreate)
	name= size=
	while [ $# -gt 0 ]; do
		case $1 in
		--name) name=$2; shift 2 ;;
		-L) size=$2; shift 2 ;;
		--type) fail "sparse volumes are not made here" ;;
		*) shift ;;
		esac
	done
	bytes=$(((${size%K} * 1024 + extent - 1) / extent * extent))
	if [ -e "$dir/volumes/$name" ]; then fail "Logical Volume \"$name\" already exists in volume group \"$group\""; fi
	if [ $(($(used) + bytes)) -gt "$total" ]; then fail "Volume group \"$group\" has insufficient free space: $((bytes / extent)) required."; fi
	truncate -s "$bytes" "$dir/volumes/$name"
	ln -sf "$(losetup -f --show "$dir/volumes/$name")" "/dev/$group/$name"
	;;
lvremove)
	name=$(basename "${!#}")
	if ! [ -e "$dir/volumes/$name" ]; then fail "Failed to find logical volume \"$group/$name\""; fi
	losetup -d "$(readlink "/dev/$group/$name")"
	rm "/dev/$group/$name" "$dir/volumes/$name"
	;;
lvchange | vgchange | vgscan) ;;
*) fail "not one of LVM's tools: $0" ;;
esac
