// Package apiservertest gives tests a real API server (gpufabric.io/build/apiserver) with CustomResourceDefinitions.
package apiservertest

import (
	"testing"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/envtest"

	"gpufabric.io/build/apiserver"
)

// Start runs a server until the test ends, with the CustomResourceDefinitions in the given files and directories, and returns an
// administrator's configuration. It skips the test, with the reason, where etcd or kube-apiserver is not installed.
func Start(t testing.TB, crds ...string) *rest.Config {
	t.Helper()
	s := apiserver.Start(t)
	ctrl.SetLogger(klog.Background())
	config := &rest.Config{Host: s.URL, BearerToken: apiserver.AdminToken, TLSClientConfig: rest.TLSClientConfig{CAData: s.CA}, QPS: -1}
	if len(crds) > 0 {
		if _, err := envtest.InstallCRDs(config, envtest.CRDInstallOptions{Paths: crds, ErrorIfPathMissing: true,
			MaxTime: 2 * time.Minute}); err != nil {
			t.Fatal(err)
		}
	}
	return config
}
