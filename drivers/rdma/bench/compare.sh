#!/bin/sh
# Measures the RDMA plugin beside k8s-rdma-shared-dev-plugin v1.5.3, built from its module, on the same trees: discovery, a port that goes down, a
# kubelet's restart, memory.
set -eu
[ $# -eq 0 ] || { sed -n '2,/^set/s/^# //p' "$0" >&2; exit 2; } # it takes minutes, and no arguments
export CGO_CFLAGS="${CGO_CFLAGS:--O2 -g -Wno-deprecated-declarations}" # as the Makefile has it
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

# Its go.mod replaces modules, which counts only in a main module: so the timer is built inside a copy of it.
mkdir "$work/fetch"
cd "$work/fetch"
GOWORK=off go mod init fetch >/dev/null 2>&1
source=$(GOWORK=off go mod download -json github.com/Mellanox/k8s-rdma-shared-dev-plugin@v1.5.3 | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
cp -r "$source" "$work/theirs"
chmod -R u+w "$work/theirs"
mkdir "$work/theirs/cmd/timer"
sed '/^\/\/go:build ignore$/d' "$here/peer/main.go" >"$work/theirs/cmd/timer/main.go"
cd "$work/theirs"
GOWORK=off go build -o "$work/peer" ./cmd/timer

cd "$here/../.."
# As `make build` builds it: the memory of what ships is what counts.
go build -trimpath -tags grpcnotrace -ldflags "-s -w" -o "$work/gpufabric-node" ./cmd/gpufabric-node
cd "$here"
PEER="$work/peer" GPUFABRIC="$work/gpufabric-node" go test -count=1 -v -run 'BesideTheOtherPlugin$' .
