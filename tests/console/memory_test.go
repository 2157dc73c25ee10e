package console

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/build/apiserver"
)

// podsPerNode is how many pods of other programs a node has.
const podsPerNode = 20

// TestCentralRolesReportResidentMemory measures what the chart's memory limits of the roles without a node are derived from: the highest
// resident memory of controller, webhook, scheduler and page before NODES nodes, each with podsPerNode pods. The programs are those in
// the directory PROGRAMS.
func TestCentralRolesReportResidentMemory(t *testing.T) {
	nodes, err := strconv.Atoi(os.Getenv("NODES"))
	programs := os.Getenv("PROGRAMS")
	if err != nil || nodes < nodesPerRack || programs == "" {
		t.Skip("skipped: it takes minutes and measures; make bench-memory runs it")
	}
	c := startCluster(t, nodes)
	m := &memoryBench{cluster: c, dir: t.TempDir(), kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	content, err := json.Marshal(map[string]any{"apiVersion": "v1", "kind": "Config", "current-context": "c",
		"contexts": []any{map[string]any{"name": "c", "context": map[string]any{"cluster": "c", "user": "u"}}},
		"clusters": []any{map[string]any{"name": "c", "cluster": map[string]any{"server": c.config.Host,
			"certificate-authority-data": c.config.CAData}}},
		"users": []any{map[string]any{"name": "u", "user": map[string]any{"token": apiserver.AdminToken}}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.kubeconfig, content, 0o600); err != nil {
		t.Fatal(err)
	}
	m.namespace(t, "gpufabric-system")
	program := filepath.Join(programs, "gpufabric")
	m.start(t, "controller", program, "controller", "--image=i", "--nic-cluster-policies=false", "--metrics-address=127.0.0.1:0",
		"--health-address=127.0.0.1:0")
	m.start(t, "scheduler", filepath.Join(programs, "gpufabric-scheduler"), "--kubeconfig="+m.kubeconfig, "--leader-elect=false",
		"--bind-address=127.0.0.1", "--secure-port=0")
	parallel(t, nodes/nodesPerRack, func(i int) error { return c.addDomain(t.Context(), i, nodesPerRack) })
	for n := range 200 {
		if err := c.addWaitingPod(t.Context(), fmt.Sprintf("waits-%d", n), "no GPU is free"); err != nil {
			t.Fatal(err)
		}
	}
	m.addPods(t)
	m.review(t, program)
	m.look(t, program)
	for name, pid := range m.pids {
		if words := highest(t, pid); words != "" {
			t.Logf("%s: %s", name, words)
		} else {
			t.Errorf("%s has ended", name)
		}
	}
}

type memoryBench struct {
	cluster         *cluster
	dir, kubeconfig string
	pids            map[string]int
}

// addPods puts podsPerNode pods without devices on each node: the scheduler and the page read all pods.
func (m *memoryBench) addPods(t *testing.T) {
	t.Helper()
	pods := m.cluster.core.CoreV1().Pods("default")
	parallel(t, m.cluster.nodes*podsPerNode, func(i int) error {
		_, err := pods.Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("pod-%d", i),
			Labels: map[string]string{"app.kubernetes.io/name": "web", "app.kubernetes.io/instance": "web", "pod-template-hash": "5f7d8c9b6d"}},
			Spec: corev1.PodSpec{NodeName: nodeName(i / podsPerNode), Containers: []corev1.Container{{Name: "c", Image: "registry.example/web:1"}}}},
			metav1.CreateOptions{})
		return err
	})
}

func (m *memoryBench) namespace(t *testing.T, name string) {
	t.Helper()
	if _, err := m.cluster.core.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}},
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

func (m *memoryBench) start(t *testing.T, name, program string, args ...string) {
	t.Helper()
	log, err := os.Create(filepath.Join(m.dir, name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	command := exec.CommandContext(t.Context(), program, args...)
	command.Stdout, command.Stderr = log, log
	command.Env = append(os.Environ(), "KUBECONFIG="+m.kubeconfig, "POD_NAMESPACE=gpufabric-system", "POD_NAME="+name)
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	if m.pids == nil {
		m.pids = map[string]int{}
	}
	m.pids[name] = command.Process.Pid
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
		_ = log.Close()
		if t.Failed() {
			content, _ := os.ReadFile(log.Name())
			t.Logf("%s:\n%.3000s", name, content)
		}
	})
}

// review has the webhook count cliques for some domains at once, and read a stranger's requests: three of the largest bodies, whose
// lists consist of empty objects.
func (m *memoryBench) review(t *testing.T, program string) {
	t.Helper()
	writePair(t, m.dir)
	port := freePort(t)
	m.start(t, "webhook", program, "webhook", "--address=127.0.0.1", "--port="+port, "--cert-dir="+m.dir, "--domain-warnings",
		"--metrics-address=127.0.0.1:0")
	address := "https://127.0.0.1:" + port + "/validate"
	domain := `{"apiVersion": "resource.nvidia.com/v1beta1", "kind": "ComputeDomain", "metadata": {"name": "d", "namespace": "default"},
		"spec": {"numNodes": 18, "channel": {"resourceClaimTemplate": {"name": "d"}}}}`
	m.await(t, func() error {
		return post(t.Context(), address, "computedomains", "resource.nvidia.com", "v1beta1", domain)
	})
	parallel(t, 32, func(int) error {
		return post(t.Context(), address, "computedomains", "resource.nvidia.com", "v1beta1", domain)
	})
	hostile := `{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "c", "namespace": "default"}, "spec":
		{"devices": {"config": [` + strings.Repeat("{},", 2_000_000) + `{}]}}}`
	parallel(t, 12, func(int) error {
		_ = post(t.Context(), address, "resourceclaims", "resource.k8s.io", "v1", hostile) // it may refuse
		return nil
	})
}

// look has four viewers look at the page, each with a token of its own, and run the doctor.
func (m *memoryBench) look(t *testing.T, program string) {
	t.Helper()
	authority := filepath.Join(m.dir, "ca.crt")
	if err := os.WriteFile(authority, m.cluster.config.CAData, 0o600); err != nil {
		t.Fatal(err)
	}
	port := freePort(t)
	m.start(t, "console", program, "console", "--viewer-tokens", "--api-server="+m.cluster.config.Host, "--api-server-ca="+authority,
		"--address=127.0.0.1:"+port)
	m.await(t, func() error { return get(t.Context(), "http://127.0.0.1:"+port+"/healthz", "", 0) })
	m.namespace(t, "viewers")
	for i := range 4 {
		token := m.viewer(t, fmt.Sprintf("viewer-%d", i))
		if err := get(t.Context(), "http://127.0.0.1:"+port+"/api/stream", token, 10*time.Second); err != nil {
			t.Errorf("viewer %d: %v", i, err)
		}
		if err := get(t.Context(), "http://127.0.0.1:"+port+"/api/doctor?kind=install", token, 0); err != nil {
			t.Errorf("viewer %d: the doctor: %v", i, err)
		}
	}
}

// viewer returns the token of a new account that may read everything.
func (m *memoryBench) viewer(t *testing.T, name string) string {
	t.Helper()
	core := m.cluster.core
	if _, err := core.CoreV1().ServiceAccounts("viewers").Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{
		Name: name}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := core.RbacV1().ClusterRoleBindings().Create(t.Context(), &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "viewers", Name: name}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	token, err := core.CoreV1().ServiceAccounts("viewers").CreateToken(t.Context(), name, &authenticationv1.TokenRequest{},
		metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return token.Status.Token
}

// await tries until a process serves, which gives no event for its port.
func (m *memoryBench) await(t *testing.T, try func() error) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(100 * time.Millisecond) {
		err := try()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
}

func post(ctx context.Context, address, resource, group, version, object string) error {
	review := `{"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "operation": "CREATE",
		"namespace": "default",
		"resource": {"group": "` + group + `", "version": "` + version + `", "resource": "` + resource + `"}, "object": ` + object + `}}`
	request, err := http.NewRequestWithContext(ctx, http.MethodPost, address, strings.NewReader(review))
	if err != nil {
		return err
	}
	request.Header.Set("Content-Type", "application/json")
	client := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true,
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}} //nolint:gosec // a measurement on the loopback
	return consume(client.Do(request))
}

// get reads an answer, or its first seconds.
func get(ctx context.Context, address, token string, first time.Duration) error {
	if first > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, first)
		defer cancel()
	}
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, address, nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	err = consume(http.DefaultClient.Do(request))
	if first > 0 && ctx.Err() != nil {
		return nil
	}
	return err
}

func consume(answer *http.Response, err error) error {
	if err != nil {
		return err
	}
	defer answer.Body.Close() //nolint:errcheck // read only
	begin, err := io.ReadAll(io.LimitReader(answer.Body, 300))
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, answer.Body); err != nil {
		return err
	}
	if answer.StatusCode != http.StatusOK {
		return fmt.Errorf("status %d: %s", answer.StatusCode, begin)
	}
	return nil
}

func freePort(t *testing.T) string {
	t.Helper()
	listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // it only chose a port
	_, port, err := net.SplitHostPort(listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	return port
}

// writePair writes tls.crt and tls.key into a directory.
func writePair(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: []string{"webhook"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for name, block := range map[string]*pem.Block{"tls.crt": {Type: "CERTIFICATE", Bytes: der},
		"tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// highest is the resident memory that a process had at most, and has now (proc_pid_status(5)).
func highest(t *testing.T, pid int) string {
	t.Helper()
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	var words []string
	for line := range bytes.Lines(status) {
		for _, name := range []string{"VmHWM", "VmRSS", "RssAnon"} {
			if value, ok := strings.CutPrefix(string(line), name+":"); ok {
				words = append(words, name+" "+strings.TrimSpace(value))
			}
		}
	}
	return strings.Join(words, ", ")
}
