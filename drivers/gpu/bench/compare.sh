#!/bin/sh
# Measures our GPU plugin beside sigs.k8s.io/dra-driver-nvidia-gpu v0.5.0, built from its module: the same fake nodes, the same run, in turn.
# It needs `make build`, the toolchain's control plane, and unshare (util-linux).
set -eu
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT

# The proxy refuses two modules of its go.mod: a pre-release of k8s.io/kubernetes, of which only the checkpoint manager is used, and go-nvfm,
# which serves VFIO only. The first is replaced by a release, the second by nothing that works.
mkdir "$work/fetch"
cd "$work/fetch"
export GOWORK=off
go mod init fetch >/dev/null 2>&1
source=$(go mod download -json sigs.k8s.io/dra-driver-nvidia-gpu@v0.5.0 | sed -n 's/^\t"Dir": "\(.*\)",$/\1/p')
cp -r "$source" "$work/theirs"
chmod -R u+w "$work/theirs"
cd "$work/theirs"
rm pkg/fabricmanager/client_nvfm*.go
sed '/^\/\/go:build ignore$/d' "$here/fabricmanager.go" >pkg/fabricmanager/absent.go
go mod edit -replace k8s.io/kubernetes=k8s.io/kubernetes@v1.36.3 -droprequire github.com/NVIDIA/go-nvfm
CGO_CFLAGS="-O2 -g -Wno-deprecated-declarations" go build -mod=mod -trimpath -ldflags "-s -w -extldflags=-Wl,-z,lazy" -o "$work/gpu-kubelet-plugin" ./cmd/gpu-kubelet-plugin

cd "$here/../../../tests/simcluster"
go run ./cmd/simcluster compare-gpu --peer "$work/gpu-kubelet-plugin"
