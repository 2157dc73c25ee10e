#!/bin/bash
# A createContainer hook of a node's base OCI spec: a container sees the fake node's hardware in its /sys and /proc, where the node has one, as it would
# see a real kernel's. It runs in the container's mount namespace before the root changes, with the container's state on stdin; nothing that it mounts
# reaches the node.
#
# The new /sys is put together from directories: those that the fake tree has come from it, the rest (fs with the cgroups, module, power) are the
# kernel's. One bind of the tree onto /sys would hide /sys/fs/cgroup, and the kernel's sysfs takes no directories to mount single devices on.
set -o errexit -o nounset -o pipefail
# Programs are the node's; the container's PATH means nothing here.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin

tree=/var/lib/fakefabric/sys # charts/fake-hardware, value root
kernel=/run/fabric-kernel     # what layout/place.sh has placed, where hardware lies where it lies on a real node
bundle=$(jq -r .bundle)
[[ -d $tree/class ]] || exit 0
config=$bundle/config.json
# A container that mounts (a part of) /sys itself has said which one it wants.
own_sys() { jq -e 'all(.mounts[]; (.destination == "/sys" and .type == "sysfs") or (.destination | startswith("/sys") | not) or .destination == "/sys/fs/cgroup")' "$config" >/dev/null; }
may_write() { jq -e 'any(.mounts[]; .destination == "/sys" and .type == "sysfs" and (.options | index("ro") | not))' "$config" >/dev/null; }

if [[ -d $kernel ]]; then
	mount --bind "$kernel/devices" "$bundle/rootfs/proc/devices"
	# What a driver's clients change there, a real driver lets its device nodes guard.
	mount --rbind "$kernel/driver" "$bundle/rootfs/proc/driver"
elif may_write; then
	exit 0 # a privileged container manages the node, and keeps what it has
fi
own_sys || exit 0

sys=$bundle/rootfs/sys
stage=$bundle/sys
mkdir -p "$stage"
mount -t tmpfs -o mode=755,nosuid,nodev,noexec sys "$stage"
for dir in "$sys"/*/ "$tree"/*/; do
	name=$(basename "$dir")
	[[ ! -e $stage/$name ]] || continue
	mkdir "$stage/$name"
	if [[ -d $tree/$name ]]; then
		mount -o bind,ro,nosuid,nodev,noexec "$tree/$name" "$stage/$name"
	else
		mount --rbind "$sys/$name" "$stage/$name"
	fi
done
# The processors and their memory are the ones that the container runs on: MPI's hwloc binds ranks to those that it reads here.
if [[ -d $stage/devices/system && -d $sys/devices/system ]]; then
	mount --rbind "$sys/devices/system" "$stage/devices/system"
fi
mount -o remount,ro "$stage"
mount --rbind "$stage" "$sys"
