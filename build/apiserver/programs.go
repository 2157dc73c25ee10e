package apiserver

import (
	"cmp"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"slices"

	"gpufabric.io/build/toolchain"
)

// Programs are the paths of the programs that a Server runs.
type Programs struct{ Etcd, APIServer string }

// Installed looks for the programs and builds none. If one is missing, the error gives the remedy.
func Installed() (p Programs, missing string) {
	p = Programs{Etcd: Find("etcd", "TEST_ASSET_ETCD"), APIServer: Find("kube-apiserver", "TEST_ASSET_KUBE_APISERVER")}
	if p.Etcd == "" || p.APIServer == "" {
		return p, "no etcd or kube-apiserver; run `make toolchain`, or set KUBEBUILDER_ASSETS to a directory with both, or TEST_ASSET_ETCD " +
			"and TEST_ASSET_KUBE_APISERVER to their paths"
	}
	return p, ""
}

// Ensured returns the toolchain's programs; it builds what is missing. TEST_ASSET_KUBE_APISERVER is the path of another kube-apiserver.
func Ensured(ctx context.Context) (Programs, error) {
	paths, err := toolchain.Ensure(ctx, "etcd", "kube-apiserver")
	return Programs{Etcd: paths["etcd"], APIServer: cmp.Or(os.Getenv("TEST_ASSET_KUBE_APISERVER"), paths["kube-apiserver"])}, err
}

// Find looks for a program in the environment variable, in KUBEBUILDER_ASSETS, on the PATH and in the toolchain's cache; empty when it is
// in none.
func Find(name, variable string) string {
	var candidates []string
	if variable != "" {
		candidates = append(candidates, os.Getenv(variable))
	}
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		candidates = append(candidates, filepath.Join(assets, name))
	}
	if path, err := exec.LookPath(name); err == nil {
		candidates = append(candidates, path)
	}
	if cache, err := toolchain.CacheRoot(); err == nil {
		built, _ := filepath.Glob(filepath.Join(cache, "toolchain", "*", "*", name)) // the pattern is well formed
		slices.Sort(built)
		slices.Reverse(built) // the newest version first
		candidates = append(candidates, built...)
	}
	for _, path := range candidates {
		if info, err := os.Stat(path); path != "" && err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	return ""
}
