#!/bin/sh
# Measures our GPU plugin beside sigs.k8s.io/dra-driver-nvidia-gpu v0.5.0, built from its module by the toolchain (whose go.mod says what of it had to
# be replaced): the same fake nodes, the same run, in turn. It needs `make build`, root, and unshare (util-linux).
set -eu
[ $# -eq 0 ] || { sed -n '2,/^set/s/^# //p' "$0" >&2; exit 2; } # it takes minutes, and no arguments
cd "$(dirname "$0")/../../.."
peer=$(go run ./build/cmd/toolchain gpu-kubelet-plugin)
cd tests/simcluster
export CGO_CFLAGS="${CGO_CFLAGS:--O2 -g -Wno-deprecated-declarations}"
GOWORK=off go run ./cmd/simcluster compare-gpu --peer "$peer"
