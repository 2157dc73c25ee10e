#!/bin/bash
# place.sh host|driver-container|foreign|kernel|none: puts the fake node at /var/lib/fakefabric where real hardware lies, in this node's mount namespace, or takes
# it away. It stands for the kernel and for the driver's installer; a kind node has neither.
#
#   kernel            the PCI functions and the RDMA devices are there, NVIDIA's driver is not: /sys, /dev/infiniband
#   host              besides, the driver as a distribution's package installs it: /usr/lib/x86_64-linux-gnu, /usr/bin, /dev/nvidia*
#   driver-container  besides, the driver as its container shows it: all below /run/nvidia/driver, device nodes too
#   foreign           as driver-container, with the C library that lies at $FOREIGN/libc, and programs that are linked with it by $FOREIGN/launcher
#
# Containers see this kernel through mount-fake-sysfs.sh, which the node's base OCI spec runs; those that are there already see its /proc change.
set -o errexit -o nounset -o pipefail

root=/var/lib/fakefabric # charts/fake-hardware, value root
kernel=/run/fabric-kernel
placed=/run/fabric-placed # what was put on the node, a file or directory a line

remember() { echo "$1" >>"$placed"; }

# remove takes everything away, the newest first.
remove() {
	[[ -e $placed ]] || return 0
	tac "$placed" | while read -r path; do
		# Once: below what was mounted on /sys lies the node's own.
		! mountpoint --quiet "$path" || umount --lazy "$path"
		case $path in
		/sys | /proc/* | "$kernel"/*) ;; # mount points, of which those in $kernel go with it
		*) rm --recursive --force --one-file-system -- "$path" ;;
		esac
	done
	rm -f "$placed"
}

# graft mounts a directory with all that is mounted below it. What is unmounted there later stays where it came from: the node's cgroups do.
graft() {
	mount --rbind "$1" "$2"
	mount --make-rslave "$2"
	remember "$2"
}

# show_kernel makes the tables that a kernel would keep, without NVIDIA's driver. A real file is rewritten in place, since containers have it mounted.
show_kernel() {
	mkdir -p "$kernel/driver/fakefabric"
	remember "$kernel"
	# The state of a driver is the kernel's: programs reach it wherever their root is.
	mount --bind "$root" "$kernel/driver/fakefabric"
	remember "$kernel/driver/fakefabric"
	cat /proc/devices >"$kernel/devices"
	mount --bind "$kernel/devices" /proc/devices
	remember /proc/devices
	graft "$kernel/driver" /proc/driver

	mkdir -p "$kernel/sys"
	mount -t tmpfs -o mode=755,nosuid,nodev,noexec sys "$kernel/sys"
	remember "$kernel/sys"
	for dir in /sys/*/ "$root"/sys/*/; do
		name=$(basename "$dir")
		[[ ! -e $kernel/sys/$name ]] || continue
		mkdir "$kernel/sys/$name"
		if [[ -d $root/sys/$name ]]; then
			mount -o bind,ro,nosuid,nodev,noexec "$root/sys/$name" "$kernel/sys/$name"
		else
			graft "/sys/$name" "$kernel/sys/$name"
			continue
		fi
		remember "$kernel/sys/$name"
	done
	# The processors and their memory are the ones that the kubelet runs on.
	if [[ -d $kernel/sys/devices/system ]]; then
		graft /sys/devices/system "$kernel/sys/devices/system"
	fi
	graft "$kernel/sys" /sys
	if [[ -d $root/dev/infiniband ]]; then
		cp --archive "$root/dev/infiniband" /dev/infiniband
		remember /dev/infiniband
	fi
}

# load_driver shows what NVIDIA's modules add to /proc. Their tables are read where the fake keeps them, since MIG changes them.
load_driver() {
	cat "$root/proc/devices" >"$kernel/devices"
	local table
	for table in "$root"/proc/driver/*; do
		ln --symbolic --force --no-dereference "fakefabric/proc/driver/$(basename "$table")" "$kernel/driver/$(basename "$table")"
	done
}

# nodes copies the device nodes that are there at boot to a directory.
nodes() {
	local node
	for node in "$root"/dev/nvidia*; do
		cp --archive "$node" "$1/$(basename "$node")"
		remember "$1/$(basename "$node")"
	done
}

# files copies the driver's files, links as links.
files() {
	local file
	mkdir -p "$1" "$2"
	for file in "$root"/driver/usr/lib64/*; do
		cp --archive "$file" "$1/"
		remember "$1/$(basename "$file")"
	done
	for file in "$root"/driver/usr/bin/*; do
		cp --archive "$file" "$2/"
		remember "$2/$(basename "$file")"
	done
}

# driver_container shows the driver as its container does. Its files come by what is called with the directories for libraries and programs.
driver_container() {
	[[ -d $kernel ]] || show_kernel
	mkdir -p /run/nvidia/driver
	remember /run/nvidia/driver
	# A mount, as the driver container makes it, so that it has to reach containers that are there already.
	mount -t tmpfs -o mode=755 driver /run/nvidia/driver
	"$1" /run/nvidia/driver/usr/lib/x86_64-linux-gnu /run/nvidia/driver/usr/bin
	mkdir /run/nvidia/driver/dev
	load_driver
	nodes /run/nvidia/driver/dev
}

# foreign_files are the driver's files beside a C library of another release than the machine's. A release from before the directories were merged has its C
# library in /lib, a later one in /usr/lib.
foreign_files() {
	if [[ ! -d $FOREIGN/libc/lib64 ]]; then
		mkdir -p /run/nvidia/driver/usr/lib /run/nvidia/driver/usr/lib64
		ln --symbolic usr/lib /run/nvidia/driver/lib
		ln --symbolic usr/lib64 /run/nvidia/driver/lib64
	fi
	cp --archive --no-target-directory "$FOREIGN/libc" /run/nvidia/driver
	files "$1" "$2"
	local library program length shift
	# The fake's is empty, and no library of the machine.
	for library in "$1"/libnvidia-imex.so.*.*; do
		[[ -s $library ]] || cat "$FOREIGN/launcher" >"$library"
	done
	for program in "$2"/*; do
		length=$(stat --format=%s "$program")
		{
			cat "$FOREIGN/launcher" "$program"
			for shift in 0 8 16 24 32 40 48 56; do printf '%b' "\\x$(printf %02x $((length >> shift & 255)))"; done
		} >"$program.linked"
		chmod 755 "$program.linked"
		mv "$program.linked" "$program"
	done
}

case ${1:-} in
kernel)
	remove
	show_kernel
	;;
host)
	[[ -d $kernel ]] || show_kernel
	files /usr/lib/x86_64-linux-gnu /usr/bin
	nodes /dev
	load_driver
	;;
driver-container) driver_container files ;;
foreign) driver_container foreign_files ;;
none) remove ;;
*)
	echo "usage: place.sh kernel|host|driver-container|foreign|none" >&2
	exit 2
	;;
esac
