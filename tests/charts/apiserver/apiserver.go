// Package apiserver runs a real kube-apiserver on etcd for tests of what only the API server decides: schemas, admission
// policies, RBAC and Helm's bookkeeping. Nothing else runs, so no pod is ever made.
package apiserver

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"gpufabric.io/build/toolchain"
)

// adminToken is the password of the one user that the server knows, in the group system:masters.
const adminToken = "admin-of-a-test"

// Starting takes about 5 s on two idle cores; a build of the programs is not counted.
const startPatience = 90 * time.Second

// Start runs the server in a directory of its own until the test ends, and returns the administrator's configuration.
// The programs come from the toolchain, which builds them once where the machine lacks them.
func Start(t *testing.T) *rest.Config {
	t.Helper()
	programs, err := toolchain.Ensure(t.Context(), "etcd", "kube-apiserver")
	if err != nil {
		t.Fatalf("the test needs etcd and kube-apiserver: %v", err)
	}
	dir := t.TempDir()
	key := filepath.Join(dir, "service-accounts.key")
	if err := writeKey(key); err != nil {
		t.Fatal(err)
	}
	tokens := filepath.Join(dir, "tokens.csv")
	if err := os.WriteFile(tokens, []byte(adminToken+",admin,1,system:masters\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	ports, err := freePorts(3)
	if err != nil {
		t.Fatal(err)
	}
	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports[0])
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports[1])
	run(t, programs["etcd"], "--data-dir="+filepath.Join(dir, "etcd"), "--unsafe-no-fsync", "--log-level=warn",
		"--listen-client-urls="+etcd, "--advertise-client-urls="+etcd,
		"--listen-peer-urls="+peer, "--initial-advertise-peer-urls="+peer, "--initial-cluster=default="+peer)
	server := run(t, programs["kube-apiserver"], "--etcd-servers="+etcd,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", fmt.Sprintf("--secure-port=%d", ports[2]),
		"--cert-dir="+filepath.Join(dir, "certificates"), "--token-auth-file="+tokens,
		"--authorization-mode=RBAC", "--allow-privileged", "--service-cluster-ip-range=10.96.0.0/16",
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file="+key, "--service-account-signing-key-file="+key,
		// No controller manager runs to make the service accounts that this plugin would wait for.
		"--disable-admission-plugins=ServiceAccount")
	config := &rest.Config{
		Host:            fmt.Sprintf("https://127.0.0.1:%d", ports[2]),
		BearerToken:     adminToken,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, // its certificate is made at start, for this test alone
		QPS:             -1,
	}
	if err := await(t.Context(), config, server); err != nil {
		t.Fatal(err)
	}
	return config
}

// process is a running program, what it said, and how it ended.
type process struct {
	output *bytes.Buffer
	ended  chan error
}

// run starts a program that the test's end stops.
func run(t *testing.T, path string, args ...string) *process {
	t.Helper()
	p := &process{output: &bytes.Buffer{}, ended: make(chan error, 1)}
	cmd := exec.Command(path, args...)
	cmd.Stdout, cmd.Stderr = p.output, p.output
	// A test that is killed takes its servers with it.
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", path, err)
	}
	stopped := make(chan struct{})
	go func() {
		p.ended <- cmd.Wait()
		close(stopped)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-stopped
	})
	return p
}

// await returns when the server says that it is ready.
func await(ctx context.Context, config *rest.Config, server *process) error {
	ctx, cancel := context.WithTimeout(ctx, startPatience)
	defer cancel()
	client, err := rest.HTTPClientFor(config)
	if err != nil {
		return err
	}
	again := time.NewTicker(100 * time.Millisecond)
	defer again.Stop()
	for {
		err := ready(ctx, client, config.Host+"/readyz")
		if err == nil {
			return nil
		}
		select {
		case end := <-server.ended:
			return fmt.Errorf("kube-apiserver ended: %w\n%s", end, server.output)
		case <-ctx.Done():
			return fmt.Errorf("kube-apiserver is not ready after %s: %w", startPatience, err)
		case <-again.C:
		}
	}
}

func ready(ctx context.Context, client *http.Client, url string) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	answer, err := client.Do(request)
	if err != nil {
		return err
	}
	defer func() { _ = answer.Body.Close() }()
	if answer.StatusCode == http.StatusOK {
		return nil
	}
	said, err := io.ReadAll(io.LimitReader(answer.Body, 4096))
	return errors.Join(fmt.Errorf("%s: %s", answer.Status, said), err)
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

// freePorts finds n TCP ports of 127.0.0.1 that nobody listens on now.
func freePorts(n int) ([]int, error) {
	ports := make([]int, 0, n)
	for range n {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return nil, err
		}
		defer func() { _ = listener.Close() }()
		ports = append(ports, listener.Addr().(*net.TCPAddr).Port)
	}
	return ports, nil
}
