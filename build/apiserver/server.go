// Package apiserver runs a real kube-apiserver on etcd for tests of decisions that only the API server makes: schemas, admission policies,
// RBAC, server-side apply. No other component runs: no pod is ever made, and no controller acts. tests/simcluster runs a whole control
// plane.
//
// It needs no library of Kubernetes' and serves every module of the repository: a test makes its clients of the URL, a token and the CA.
package apiserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"gpufabric.io/build/port"
)

// Users of the server, by bearer token.
const (
	AdminToken  = "token-of-admin"  // in the group system:masters: may do everything
	ViewerToken = "token-of-viewer" // may do nothing until a test grants the user viewer something
)

// startPatience bounds the start; 5 s are usual on two idle cores, and over a minute was seen on two that built and tested beside it.
const startPatience = 5 * time.Minute

// Server is a running API server. The end of the test that started it stops it; one that was launched runs until Stop.
type Server struct {
	URL string
	CA  []byte // PEM; to verify the server with

	dir       string
	path      string
	args      []string
	api       *process
	processes []*process // every process that was started: a server that a subtest resumed outlives the subtest
}

// Start runs a server until the test ends. It skips the test, with the reason, where etcd or kube-apiserver is not installed, and with
// -short. The flags for kube-apiserver come after those that it needs here.
func Start(t testing.TB, flags ...string) *Server {
	t.Helper()
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	programs, missing := Installed()
	if missing != "" {
		t.Skip("skipped: " + missing)
	}
	return programs.Start(t, flags...)
}

// StartEnsured is Start for a test that must not be skipped: the toolchain builds what is missing. The flags for kube-apiserver
// come after those that it needs here.
func StartEnsured(t testing.TB, flags ...string) *Server {
	t.Helper()
	programs, err := Ensured(t.Context())
	if err != nil {
		t.Fatalf("the test needs etcd and kube-apiserver: %v", err)
	}
	return programs.Start(t, flags...)
}

// Emulating is the flag with which a server behaves as an earlier minor version of Kubernetes, such as 1.35: it serves the API versions,
// fields and feature gates of then, with the validation of today. It can emulate three versions before its own.
func Emulating(version string) string { return "--emulated-version=" + version }

// Start runs a server of these programs, with more flags, until the test ends.
func (p Programs) Start(t testing.TB, flags ...string) *Server {
	t.Helper()
	s, err := p.Launch(t.Context(), t.TempDir(), flags...)
	if err != nil {
		t.Fatalf("start an API server for the test: %v", err)
	}
	t.Cleanup(s.Stop)
	return s
}

// Launch runs a server of these programs, with more flags, until Stop, for several tests. Its files are in dir, which stays.
func (p Programs) Launch(ctx context.Context, dir string, flags ...string) (*Server, error) {
	s, err := p.prepare(dir)
	if err != nil {
		return nil, err
	}
	s.args = append(s.args, flags...)
	if err := s.resume(ctx); err != nil {
		s.Stop()
		return nil, err
	}
	return s, nil
}

// Stop ends the server and its etcd.
func (s *Server) Stop() {
	for _, p := range slices.Backward(s.processes) {
		p.stop()
	}
}

// prepare runs etcd and writes the API server's files.
func (p Programs) prepare(dir string) (*Server, error) {
	key := filepath.Join(dir, "service-accounts.key")
	if err := writeKey(key); err != nil {
		return nil, err
	}
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(AdminToken+",admin,1,system:masters\n"+ViewerToken+",viewer,2\n"), 0o600); err != nil {
		return nil, err
	}
	ports, err := port.Free(3)
	if err != nil {
		return nil, err
	}
	client, peer := fmt.Sprintf("http://127.0.0.1:%d", ports[0]), fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	s := &Server{dir: dir, path: p.APIServer, URL: fmt.Sprintf("https://127.0.0.1:%d", ports[2])}
	if _, err = s.run(p.Etcd, "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level=error",
		"--listen-client-urls="+client, "--advertise-client-urls="+client,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer); err != nil {
		return nil, err
	}
	s.args = []string{
		"--etcd-servers=" + client,
		"--bind-address=127.0.0.1",
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none", // 1.37 refuses a loopback address for the endpoints of the `kubernetes` service
		fmt.Sprintf("--secure-port=%d", ports[2]),
		"--cert-dir=" + filepath.Join(dir, "certificates"),
		"--token-auth-file=" + tokens,
		"--authorization-mode=RBAC",
		"--allow-privileged",
		"--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + key,
		"--service-account-signing-key-file=" + key,
		// This plugin would wait for service accounts, and no controller manager runs to create them.
		"--disable-admission-plugins=ServiceAccount",
	}
	return s, nil
}

// Pause stops the API server, as if it had become unreachable. Etcd keeps its data.
func (s *Server) Pause() { s.api.stop() }

// Resume starts the API server, at the start and after Pause, and returns when it is ready.
func (s *Server) Resume(t testing.TB) {
	t.Helper()
	if err := s.resume(t.Context()); err != nil {
		t.Fatal(err)
	}
}

func (s *Server) resume(ctx context.Context) (err error) {
	if s.api, err = s.run(s.path, s.args...); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	again := time.NewTicker(100 * time.Millisecond) // there is no event for a server that starts
	defer again.Stop()
	for {
		err := s.ready(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-s.api.ended:
			return fmt.Errorf("kube-apiserver ended: %s", s.api.output)
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready after %s: %w", startPatience, err)
		case <-again.C:
		}
	}
}

// ready reports whether the server is ready.
func (s *Server) ready(ctx context.Context) error {
	// The server makes its certificate at the first start, with the authority that signed it in the same file.
	ca, err := os.ReadFile(filepath.Join(s.dir, "certificates", "apiserver.crt"))
	if err != nil {
		return err
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(ca) {
		return errors.New("the server's certificate is not written yet")
	}
	s.CA = ca
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+"/readyz", nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+AdminToken)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}, DisableKeepAlives: true}
	answer, err := (&http.Client{Transport: transport}).Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }() // only read
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	said, err := io.ReadAll(io.LimitReader(answer.Body, 4096))
	return errors.Join(fmt.Errorf("%s: %s", answer.Status, said), err)
}

// process is a running program and its output.
type process struct {
	cmd    *exec.Cmd
	output *bytes.Buffer
	ended  chan struct{}
}

func (s *Server) run(path string, args ...string) (*process, error) {
	p := &process{output: &bytes.Buffer{}, ended: make(chan struct{})}
	p.cmd = exec.Command(path, args...)
	p.cmd.Stdout, p.cmd.Stderr = p.output, p.output
	// With Go's default, garbage collection takes a fifth of kube-apiserver's time. These settings take a few hundred MiB for most of that.
	p.cmd.Env = append(os.Environ(), "GOGC=400", "GOMEMLIMIT=512MiB")
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL} // if the test is killed, its servers end too
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", path, err)
	}
	go func() {
		_ = p.cmd.Wait() // a killed program always ends with an error
		close(p.ended)
	}()
	s.processes = append(s.processes, p)
	return p, nil
}

func (p *process) stop() {
	_ = p.cmd.Process.Kill() // fails only on one that has ended
	<-p.ended
}

// writeKey makes the key that signs service accounts' tokens.
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
