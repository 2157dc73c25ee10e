#!/bin/sh
# Times the discovery of RDMA devices beside k8s-rdma-shared-dev-plugin v1.5.3, built from its module, on the same trees.
set -eu
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

cd "$here"
PEER="$work/peer" go test -count=1 -v -run TestDiscoveryBesideTheOtherPlugin .
