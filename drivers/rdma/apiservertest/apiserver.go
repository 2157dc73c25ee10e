// Package apiservertest runs a real API server for tests.
package apiservertest

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// patience bounds the server's start and its end.
const patience = time.Minute

// Start runs etcd and kube-apiserver until the test ends, with the CustomResourceDefinitions in the given files, and returns an
// administrator's configuration. The test is skipped where neither KUBEBUILDER_ASSETS nor the toolchain has the two programs.
func Start(t *testing.T, crds ...string) *rest.Config {
	t.Helper()
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	etcd, api := find("etcd"), find("kube-apiserver")
	if etcd == "" || api == "" {
		t.Skip("skipped: no etcd or kube-apiserver; run `make toolchain`, or set KUBEBUILDER_ASSETS to a directory with both")
	}
	ctrl.SetLogger(klog.Background())
	environment := &envtest.Environment{CRDDirectoryPaths: crds, ErrorIfCRDPathMissing: true, ControlPlaneStartTimeout: patience,
		ControlPlaneStopTimeout: patience}
	environment.ControlPlane.Etcd = &envtest.Etcd{Path: etcd}
	environment.ControlPlane.GetAPIServer().Path = api
	config, err := environment.Start()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Error(err)
		}
	})
	return config
}

// find looks for a program in KUBEBUILDER_ASSETS and where the toolchain is built.
func find(name string) string {
	user, _ := os.UserCacheDir()
	found, _ := filepath.Glob(filepath.Join(user, "gpufabric/toolchain", name, "*", name))
	slices.Reverse(found)
	if assets := os.Getenv("KUBEBUILDER_ASSETS"); assets != "" {
		found = append([]string{filepath.Join(assets, name)}, found...)
	}
	for _, path := range found {
		if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
			return path
		}
	}
	return ""
}
