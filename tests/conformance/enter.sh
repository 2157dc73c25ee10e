#!/bin/sh
# enter.sh ROOT PROGRAM ARGS...: runs the program with the fake node at ROOT in the place of this machine's hardware. For a mount namespace of
# its own (unshare -Urm); what it mounts is gone with it.
set -e
root=$1
shift
for device in null zero full random urandom; do
	: >>"$root/dev/$device"
	mount --bind /dev/$device "$root/dev/$device"
done
# Who may not make device nodes has rendered plain files, and some programs count character devices alone.
for device in "$root"/dev/nvidia[0-9]*; do
	if [ -f "$device" ]; then
		mount --bind /dev/null "$device"
	fi
done
mount --rbind "$root/sys" /sys
mount --rbind "$root/dev" /dev
if [ -d "$root/proc/driver" ]; then # a machine without GPUs has none
	mount --rbind "$root/proc/driver" /proc/driver
fi
mount --bind "$root/proc/devices" /proc/devices
# The device plugin keeps its sockets in a directory that it takes from the kubelet's sources.
mkdir -p "$root/var/lib/kubelet/device-plugins"
mount --bind "$root/var/lib" /var/lib
exec "$@"
