// Package apiserver runs a real kube-apiserver on etcd for tests, with doubles of the few controllers that the provider waits for.
package apiserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	api "k8s.io/client-go/tools/clientcmd/api"
)

// Users of the server, by bearer token.
const (
	AdminToken  = "token-of-admin"  // may do everything
	ViewerToken = "token-of-viewer" // may do nothing until a test grants it something
)

// startPatience bounds the start; 5 s are usual on two idle cores.
const startPatience = 90 * time.Second

// Server is a running API server.
type Server struct {
	URL        string
	CA         string // PEM
	Kubeconfig string // path, context "test", as the administrator
	Config     *rest.Config
	Typed      kubernetes.Interface
	Dynamic    dynamic.Interface

	dir     string
	args    []string
	path    string
	api     *process
	cleanup func(func()) // of the test that started the server: a server that a part of it resumed outlives the part
}

// Start runs a server until the test ends. It skips the test, with the reason, where etcd or kube-apiserver are not built.
func Start(t testing.TB) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	etcdPath, apiPath := Find("etcd", "TEST_ASSET_ETCD"), Find("kube-apiserver", "TEST_ASSET_KUBE_APISERVER")
	if etcdPath == "" || apiPath == "" {
		t.Skip(
			"skipped: no etcd or kube-apiserver; run `make toolchain`, or set KUBEBUILDER_ASSETS to a directory with both, or TEST_ASSET_ETCD " +
				"and TEST_ASSET_KUBE_APISERVER to their paths",
		)
	}
	dir := t.TempDir()
	key := filepath.Join(dir, "service-accounts.key")
	must(t, writeKey(key))
	tokens := filepath.Join(dir, "tokens.csv")
	must(t, os.WriteFile(tokens, []byte(AdminToken+",admin,1,system:masters\n"+ViewerToken+",viewer,2\n"), 0o600))
	ports, err := freePorts(3)
	must(t, err)
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	s := &Server{dir: dir, path: apiPath, cleanup: t.Cleanup, URL: fmt.Sprintf("https://127.0.0.1:%d", ports[2])}
	s.run(t, etcdPath, "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	s.args = []string{
		"--etcd-servers=" + client,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		fmt.Sprintf("--secure-port=%d", ports[2]),
		"--cert-dir=" + filepath.Join(dir, "certificates"),
		"--token-auth-file=" + tokens,
		"--authorization-mode=RBAC",
		"--allow-privileged",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + key,
		"--service-account-signing-key-file=" + key,
		"--disable-admission-plugins=ServiceAccount",
	} // no controller manager runs to make what it waits for
	s.Resume(t)
	return s
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
	cache := os.Getenv("GPUFABRIC_CACHE")
	if user, err := os.UserCacheDir(); cache == "" && err == nil {
		cache = filepath.Join(user, "gpufabric")
	}
	built, _ := filepath.Glob(filepath.Join(cache, "toolchain", "*", "*", name)) // the pattern is well formed
	slices.Sort(built)
	slices.Reverse(built) // the newest version first
	for _, c := range append(candidates, built...) {
		if info, err := os.Stat(c); c != "" && err == nil && !info.IsDir() {
			return c
		}
	}
	return ""
}

// Pause stops the API server (etcd keeps its data), as if it had gone away in mid-apply.
func (s *Server) Pause() { s.api.stop() }

// Resume starts the API server, at the start and after Pause, and returns when it is ready.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	s.api = s.run(t, s.path, s.args...)
	ctx, cancel := context.WithTimeout(t.Context(), startPatience)
	defer cancel()
	for {
		err := s.connect(ctx)
		if err == nil {
			return
		}
		select {
		case <-s.api.ended:
			t.Fatalf("kube-apiserver ended: %s", s.api.output)
		case <-ctx.Done():
			t.Fatalf("kube-apiserver is not ready after %s: %v", startPatience, err)
		case <-time.After(100 * time.Millisecond): // a server that is starting sends no event
		}
	}
}

func (s *Server) connect(ctx context.Context) error {
	if s.Typed == nil {
		if err := s.makeClients(); err != nil {
			return err
		}
	}
	_, err := s.Typed.Discovery().RESTClient().Get().AbsPath("/readyz").DoRaw(ctx)
	return err
}

func (s *Server) makeClients() error {
	// The server makes its certificate at the first start, with the authority that signed it in the same file.
	ca, err := os.ReadFile(filepath.Join(s.dir, "certificates", "apiserver.crt"))
	if err != nil {
		return err
	}
	s.CA = string(ca)
	s.Config = &rest.Config{Host: s.URL, BearerToken: AdminToken, TLSClientConfig: rest.TLSClientConfig{CAData: ca}, QPS: -1}
	if s.Dynamic, err = dynamic.NewForConfig(s.Config); err != nil {
		return err
	}
	s.Kubeconfig = filepath.Join(s.dir, "kubeconfig")
	config := api.NewConfig()
	config.Clusters["test"] = &api.Cluster{Server: s.URL, CertificateAuthorityData: ca}
	config.AuthInfos["admin"] = &api.AuthInfo{Token: AdminToken}
	config.Contexts["test"] = &api.Context{Cluster: "test", AuthInfo: "admin"}
	config.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*config, s.Kubeconfig); err != nil {
		return err
	}
	s.Typed, err = kubernetes.NewForConfig(s.Config)
	return err
}

// process is a running program and what it said.
type process struct {
	cmd    *exec.Cmd
	output *bytes.Buffer
	ended  chan struct{}
}

func (s *Server) run(t testing.TB, path string, args ...string) *process {
	t.Helper()
	p := &process{output: &bytes.Buffer{}, ended: make(chan struct{})}
	p.cmd = exec.Command(path, args...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // a test that is killed takes its servers along
	must(t, p.cmd.Start())
	go func() {
		_ = p.cmd.Wait() // a killed program always ends with an error
		close(p.ended)
	}()
	s.cleanup(p.stop)
	return p
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill() // fails only on one that has ended
	<-p.ended
}

func writeKey(path string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return err
	}
	return os.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), 0o600)
}

func freePorts(n int) ([]int, error) {
	var ports []int
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = l.Close() }()
		ports = append(ports, l.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
