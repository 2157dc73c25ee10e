#!/bin/bash
# Makes Docker (and mmdebstrap, for the node image) usable on a bare Debian machine. Safe to run again: it does only what is missing, and leaves
# dockerd running. CI and sandboxes call it; on a workstation Docker is already there and this exits at once.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
state=${GPUFABRIC_DOCKER_STATE:-/var/lib/gpufabric-ci}
ready_seconds=60

say() { echo "docker.sh: $*" >&2; }
die() { say "$*"; exit 1; }

need_packages() {
	local missing=()
	command -v dockerd >/dev/null || [ -x /usr/sbin/dockerd ] || missing+=(docker.io)
	command -v mmdebstrap >/dev/null || missing+=(mmdebstrap)
	command -v iptables >/dev/null || [ -x /usr/sbin/iptables ] || missing+=(iptables)
	[ ${#missing[@]} -eq 0 ] && return
	[ "$(id -u)" = 0 ] || die "missing ${missing[*]}: run as root, or: sudo apt-get install ${missing[*]}"
	say "installing ${missing[*]}"
	# Debian starts dockerd after installing it; here it is started below, with the options this machine needs.
	printf '#!/bin/sh\nexit 101\n' >/usr/sbin/policy-rc.d
	chmod +x /usr/sbin/policy-rc.d
	trap 'rm -f /usr/sbin/policy-rc.d' EXIT
	DEBIAN_FRONTEND=noninteractive apt-get -qq update
	DEBIAN_FRONTEND=noninteractive apt-get -qq install -y --no-install-recommends "${missing[@]}" >/dev/null
	rm -f /usr/sbin/policy-rc.d
}

# CAP_SYS_RESOURCE is bit 24 of the bounding set.
lacks_sys_resource() {
	local bounding
	bounding=$(awk '/^CapBnd/ {print $2}' /proc/self/status)
	[ $((0x$bounding >> 24 & 1)) -eq 0 ]
}

# A daemon that somebody else started (apt, an init script) knows nothing of the missing capability.
unmended() { lacks_sys_resource && [ "$(docker info -f '{{.DefaultRuntime}}')" = runc ]; }

need_packages
if docker info >/dev/null 2>&1; then
	if ! unmended; then
		say "Docker $(docker version -f '{{.Server.Version}}') answers"
		exit 0
	fi
	[ -z "$(docker ps -q)" ] || die "this machine lacks CAP_SYS_RESOURCE, and dockerd runs containers without the mend: stop them and dockerd, then run this again"
	say "restarting dockerd, which was started without the mend for CAP_SYS_RESOURCE"
	old=$(cat /var/run/docker.pid)
	kill "$old"
	timeout $ready_seconds tail --pid="$old" -f /dev/null || die "dockerd (pid $old) does not end"
fi

[ "$(id -u)" = 0 ] || die "Docker does not answer; start it, or run this as root"
mkdir -p "$state"
options=()
if lacks_sys_resource; then
	# dockerd outlives the checkout that started it.
	install -m 755 "$here/runc-without-sys-resource" "$state/"
	say "no CAP_SYS_RESOURCE here: containers start through $state/runc-without-sys-resource"
	options+=(--add-runtime "mended=$state/runc-without-sys-resource" --default-runtime mended)
fi

rm -f /var/run/docker.pid
PATH=$PATH:/usr/sbin:/sbin setsid nohup dockerd "${options[@]}" >"$state/dockerd.log" 2>&1 </dev/null &
pid=$!
for ((i = 0; i < ready_seconds * 5; i++)); do
	if docker info >/dev/null 2>&1; then
		say "Docker $(docker version -f '{{.Server.Version}}') is up (pid $pid, log $state/dockerd.log)"
		exit 0
	fi
	kill -0 "$pid" 2>/dev/null || { tail -20 "$state/dockerd.log" >&2; die "dockerd ended; its log is $state/dockerd.log"; }
	sleep 0.2
done
tail -20 "$state/dockerd.log" >&2
die "dockerd did not answer within $ready_seconds s; its log is $state/dockerd.log"
