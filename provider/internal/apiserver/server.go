// Package apiserver gives the provider's tests a real kube-apiserver (gpufabric.io/build/apiserver) with clients, and fakes of the
// few controllers that the provider waits for.
package apiserver

import (
	"path/filepath"
	"testing"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	api "k8s.io/client-go/tools/clientcmd/api"

	"gpufabric.io/build/apiserver"
)

// Users of the server, by bearer token.
const (
	AdminToken  = apiserver.AdminToken  // may do everything
	ViewerToken = apiserver.ViewerToken // may do nothing until a test grants it something
)

// Server is a running API server with an administrator's clients.
type Server struct {
	*apiserver.Server
	CA         string // PEM
	Kubeconfig string // path, context "test", as the administrator
	Config     *rest.Config
	Typed      kubernetes.Interface
	Dynamic    dynamic.Interface
}

// Start runs a server until the test ends. It skips the test, with the reason, where etcd or kube-apiserver is not installed.
func Start(t testing.TB) *Server {
	t.Helper()
	s := &Server{Server: apiserver.Start(t), Kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	ca := s.Server.CA
	s.CA = string(ca)
	s.Config = &rest.Config{Host: s.URL, BearerToken: AdminToken, TLSClientConfig: rest.TLSClientConfig{CAData: ca}, QPS: -1}
	var err error
	s.Dynamic, err = dynamic.NewForConfig(s.Config)
	must(t, err)
	s.Typed, err = kubernetes.NewForConfig(s.Config)
	must(t, err)
	config := api.NewConfig()
	config.Clusters["test"] = &api.Cluster{Server: s.URL, CertificateAuthorityData: ca}
	config.AuthInfos["admin"] = &api.AuthInfo{Token: AdminToken}
	config.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: "admin"}
	config.CurrentContext = "test"
	must(t, clientcmd.WriteToFile(*config, s.Kubeconfig))
	return s
}

// Find looks for a program; see the package that runs the server.
func Find(name, variable string) string { return apiserver.Find(name, variable) }

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
