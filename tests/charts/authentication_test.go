package charts

import (
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

// scraper reads a role's metrics as the owner of the token.
type scraper struct{ port int }

// ask returns the status and the body. The status is 0 until the port has a listener.
func (s scraper) ask(t *testing.T, scheme, token string) (status int, body string) {
	t.Helper()
	client := &http.Client{Timeout: time.Minute, Transport: &http.Transport{
		TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}} //nolint:gosec // the role made it itself
	request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, fmt.Sprintf("%s://127.0.0.1:%d/metrics", scheme, s.port), nil)
	if err != nil {
		t.Fatal(err)
	}
	if token != "" {
		request.Header.Set("Authorization", "Bearer "+token)
	}
	answer, err := client.Do(request)
	if err != nil {
		return 0, err.Error()
	}
	defer func() { _ = answer.Body.Close() }()
	text, err := io.ReadAll(answer.Body)
	if err != nil {
		return 0, err.Error()
	}
	return answer.StatusCode, string(text)
}

// awaitShown retries until the role shows its metrics.
func (s scraper) awaitShown(t *testing.T, role, token string) {
	t.Helper()
	var status int
	var body string
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(50 * time.Millisecond) {
		// A role answers before it has any series.
		if status, body = s.ask(t, "https", token); status == http.StatusOK && strings.Contains(body, "# TYPE ") {
			return
		}
	}
	t.Fatalf("%s does not show its metrics to who may read them: %d %s", role, status, body)
}

// account makes a service account, and returns a token of it.
func account(t *testing.T, admin kubernetes.Interface, name string) string {
	t.Helper()
	made := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace}}
	if _, err := admin.CoreV1().ServiceAccounts(namespace).Create(t.Context(), made, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	return boundToken(t, admin, name)
}

// TestRolesServeMetricsOnlyToAuthorizedTokens runs the program as the chart's service accounts, and reads the metrics
// of each role.
func TestRolesServeMetricsOnlyToAuthorizedTokens(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver and builds the program; -short asks for neither")
	}
	program, live := buildProgram(t), startServer(t)
	values := map[string]any{"gpus": on(), "vgpu": on(), "metrics": map[string]any{"authentication": true}}
	live.installChart(t, values)
	admin, err := kubernetes.NewForConfig(live.config)
	if err != nil {
		t.Fatal(err)
	}
	prometheus, tenant := account(t, admin, "prometheus"), account(t, admin, "tenant")
	binding := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "prometheus"},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "gpufabric-metrics-reader"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: "prometheus", Namespace: namespace}}}
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(t.Context(), binding, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	dir := shortDir(t)
	selfSigned(t, dir)
	for name, value := range map[string]string{"NODE_NAME": "node-a", "POD_IP": "127.0.0.1", "COMPUTE_DOMAIN_UUID": "uid",
		"COMPUTE_DOMAIN_NAME": "domain", "COMPUTE_DOMAIN_NAMESPACE": "default"} {
		t.Setenv(name, value)
	}
	for role, args := range map[string][]string{
		"controller":   {"--image=i", "--leader-election=false"},
		"webhook":      {"--address=127.0.0.1", fmt.Sprintf("--port=%d", freePort(t)), "--cert-dir=" + dir},
		"mps-keeper":   {"--mps-dir=" + dir + "/mps", "--driver-root=" + dir, "--dev-root=" + dir},
		"vgpu-monitor": {"--state-dir=" + dir + "/vgpu", "--kubelet-root=" + dir, "--cdi-root=" + dir + "/cdi"},
		"imex-daemon": {"--dir=" + dir + "/imex", "--hosts-file=" + dir + "/hosts", fmt.Sprintf("--health-port=%d", freePort(t)),
			fmt.Sprintf("--server-port=%d", freePort(t)), fmt.Sprintf("--command-port=%d", freePort(t))},
	} {
		s := scraper{port: freePort(t)}
		address := fmt.Sprintf("--metrics-address=127.0.0.1:%d", s.port)
		if role == "imex-daemon" {
			address = fmt.Sprintf("--metrics-port=%d", s.port)
		}
		args = append([]string{role, "--metrics-authentication", address}, args...)
		start(t, programOf(program, role), kubeconfig(t, live.config, admin, "gpufabric-"+role), args...)
		s.awaitShown(t, role, prometheus)
		for _, attempt := range []struct {
			what, scheme, token string
			want                int
		}{
			{"without a token", "https", "", http.StatusUnauthorized},
			{"with a forged token", "https", "forged", http.StatusUnauthorized},
			{"with a tenant's token", "https", tenant, http.StatusForbidden},
		} {
			status, body := s.ask(t, attempt.scheme, attempt.token)
			if status != attempt.want || strings.Contains(body, "# TYPE ") {
				t.Errorf("%s %s: %d %s, want %d", role, attempt.what, status, body, attempt.want)
			}
			t.Logf("attacker sees of %s %s: %d %s", role, attempt.what, status, strings.TrimSpace(body))
		}
		// A TLS server reports what is wrong, or closes the connection.
		if status, body := s.ask(t, "http", prometheus); status == http.StatusOK || strings.Contains(body, "# TYPE ") {
			t.Errorf("%s without TLS: %d %s", role, status, body)
		}
	}
}
