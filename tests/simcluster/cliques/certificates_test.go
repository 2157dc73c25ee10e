package cliques

import (
	"bufio"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fixture"
)

// daemonOf is the address of node i's IMEX daemon, and the name that its certificate has.
func daemonOf(t *testing.T, i int) (address, name string) {
	t.Helper()
	pods, err := shared.Client.CoreV1().Pods(fixture.System).List(t.Context(), metav1.ListOptions{
		LabelSelector: "app.kubernetes.io/component=imex-daemon", FieldSelector: "spec.nodeName=" + cluster.NodeName(i),
	})
	if err != nil {
		t.Fatal(err)
	}
	for _, pod := range pods.Items {
		if pod.DeletionTimestamp == nil {
			return net.JoinHostPort(pod.Status.PodIP, "50000"), pod.Labels["resource.nvidia.com/computeDomain"]
		}
	}
	t.Fatalf("node %d has no IMEX daemon", i)
	return "", ""
}

// says reports whether a daemon answers a peer's message on a connection.
func says(conn net.Conn) error {
	if err := conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := fmt.Fprintln(conn, `{"state":"READY"}`); err != nil {
		return err
	}
	_, err := bufio.NewReader(conn).ReadString('\n')
	return err
}

func TestCertificatesAdmitOnlyTheCliquesPeers(t *testing.T) {
	n := shared.Namespace(t)
	twoDomains(t, n) // the daemons run
	address, uid := daemonOf(t, 0)
	secret, err := shared.Client.CoreV1().Secrets(fixture.System).Get(t.Context(), "imex-daemon-"+uid, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	mine, err := tls.X509KeyPair(secret.Data["tls.crt"], secret.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(secret.Data["ca.crt"])
	config := &tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: uid + ".imex.gpufabric.io"}
	member := config.Clone()
	member.Certificates = []tls.Certificate{mine}
	stranger := config.Clone()
	var dialer net.Dialer
	for name, c := range map[string]struct {
		config   *tls.Config
		accepted bool
	}{"a member": {member, true}, "nobody": {stranger, false}, "in the clear": {nil, false}} {
		conn, err := dialer.DialContext(t.Context(), "tcp", address)
		if err != nil {
			t.Fatal(err)
		}
		if c.config != nil {
			conn = tls.Client(conn, c.config)
		}
		if err := says(conn); (err == nil) != c.accepted {
			t.Errorf("%s: %v", name, err)
		}
		_ = conn.Close()
	}
	if len(mine.Leaf.DNSNames) != 1 || !strings.HasPrefix(mine.Leaf.DNSNames[0], uid) {
		t.Errorf("the certificate has the names %v", mine.Leaf.DNSNames)
	}
}
