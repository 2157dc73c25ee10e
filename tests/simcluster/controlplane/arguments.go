package controlplane

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

// A control plane here shares two cores with a thousand nodes, and has no other users. The clients' rate limits, which protect
// a shared API server, would distort the measurements of the drivers.
const (
	clientQPS   = 1000
	clientBurst = 2000
)

// auditPolicy records the requests of the given namespaces' service accounts, and those of the administrator on request. Other
// requests would fill the log.
func auditPolicy(namespaces []string, admin bool) string {
	groups := []string{}
	for _, namespace := range namespaces {
		groups = append(groups, strconv.Quote("system:serviceaccounts:"+namespace))
	}
	if admin {
		groups = append(groups, strconv.Quote("system:masters"))
	}
	return fmt.Sprintf(`apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  userGroups: [%s]
- level: None
`, strings.Join(groups, ", "))
}

// configure writes every component's files and decides its arguments.
func (c *ControlPlane) configure(ports ports) error {
	dir := func(name string) string { return filepath.Join(c.options.Dir, name) }
	if c.options.SchedulerProfiling {
		c.scheduler = ports.scheduler
	}
	users := map[string]string{ // kubeconfig to user
		"controller-manager.kubeconfig": "system:kube-controller-manager",
		"scheduler.kubeconfig":          "system:kube-scheduler",
	}
	for name, user := range users {
		if err := c.writeKubeconfig(dir(name), user); err != nil {
			return err
		}
	}
	if err := c.writeKubeconfig(c.Kubeconfig(), "admin", "system:masters"); err != nil {
		return err
	}
	// 172.31.0.1 is what `kubernetes.default` resolves to; the other names are its aliases.
	serving, err := c.authority.Server("kube-apiserver",
		[]string{"localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc"},
		[]net.IP{net.IPv4(127, 0, 0, 1), net.IPv4(172, 31, 0, 1)})
	if err != nil {
		return err
	}
	cert, key, err := serving.Write(dir("pki"), "kube-apiserver")
	if err != nil {
		return err
	}

	egress := fmt.Sprintf(`apiVersion: apiserver.k8s.io/v1beta1
kind: EgressSelectorConfiguration
egressSelections:
- name: cluster
  connection: {proxyProtocol: HTTPConnect, transport: {uds: {udsName: %q}}}
`, Gateway(c.options.Dir))
	if err := os.WriteFile(dir("egress.yaml"), []byte(egress), 0o600); err != nil {
		return fmt.Errorf("write the egress configuration: %w", err)
	}

	etcd := fmt.Sprintf("http://127.0.0.1:%d", ports.etcd)
	peer := fmt.Sprintf("http://127.0.0.1:%d", ports.etcdPeer)
	c.arguments["etcd"] = []string{
		"--name=simcluster", "--data-dir=" + dir("etcd"),
		"--listen-client-urls=" + etcd, "--advertise-client-urls=" + etcd,
		"--listen-peer-urls=" + peer, "--initial-advertise-peer-urls=" + peer, "--initial-cluster=simcluster=" + peer,
		// Nothing here must survive a crash of the machine. Without this flag every write waits for the disk.
		"--unsafe-no-fsync",
		"--quota-backend-bytes=" + strconv.Itoa(8<<30), "--log-level=warn",
	}
	c.arguments["kube-apiserver"] = append([]string{
		"--etcd-servers=" + etcd,
		"--bind-address=127.0.0.1", "--advertise-address=127.0.0.1", "--secure-port=" + strconv.Itoa(ports.apiServer),
		"--tls-cert-file=" + cert, "--tls-private-key-file=" + key, "--client-ca-file=" + c.authority.CertFile(),
		"--service-account-key-file=" + c.authority.ServiceAccountKeyFile(),
		"--service-account-signing-key-file=" + c.authority.ServiceAccountKeyFile(),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-cluster-ip-range=172.31.0.0/16",
		"--authorization-mode=Node,RBAC", "--enable-admission-plugins=NodeRestriction",
		"--allow-privileged",
		// Service addresses do not work without kube-proxy. Webhooks are called at their endpoints' addresses, through the
		// nodes' gateway.
		"--enable-aggregator-routing", "--egress-selector-config-file=" + dir("egress.yaml"),
		// An endpoint may not have a loopback address, so the `kubernetes` service has none.
		"--endpoint-reconciler-type=none",
	}, c.common()...)
	if len(c.options.APIs) > 0 {
		c.arguments["kube-apiserver"] = append(c.arguments["kube-apiserver"], "--runtime-config="+strings.Join(c.options.APIs, "=true,")+"=true")
	}
	if len(c.options.Audit) > 0 || c.options.AuditAdmin {
		if err := os.WriteFile(dir("audit-policy.yaml"), []byte(auditPolicy(c.options.Audit, c.options.AuditAdmin)), 0o600); err != nil {
			return fmt.Errorf("write the audit policy: %w", err)
		}
		c.arguments["kube-apiserver"] = append(c.arguments["kube-apiserver"],
			"--audit-policy-file="+dir("audit-policy.yaml"), "--audit-log-path="+AuditLog(c.options.Dir), "--audit-log-mode=batch",
			"--audit-log-batch-max-wait=1s")
	}
	c.arguments["kube-controller-manager"] = append([]string{
		"--kubeconfig=" + dir("controller-manager.kubeconfig"),
		"--leader-elect=false", "--secure-port=0",
		"--service-account-private-key-file=" + c.authority.ServiceAccountKeyFile(),
		"--root-ca-file=" + c.authority.CertFile(),
		"--use-service-account-credentials",
		"--controllers=*,-node-ipam-controller,-certificatesigningrequest-signing-controller",
		fmt.Sprintf("--kube-api-qps=%d", clientQPS), fmt.Sprintf("--kube-api-burst=%d", clientBurst),
	}, c.common()...)
	if c.options.NodeGrace > 0 {
		c.arguments["kube-controller-manager"] = append(c.arguments["kube-controller-manager"],
			"--node-monitor-grace-period="+c.options.NodeGrace.String())
	}
	scheduler := fmt.Sprintf(`apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection: {leaderElect: false}
clientConnection: {kubeconfig: %q, qps: %d, burst: %d}
`, dir("scheduler.kubeconfig"), clientQPS, clientBurst)
	if err := os.WriteFile(dir("scheduler.yaml"), []byte(scheduler), 0o600); err != nil {
		return fmt.Errorf("write the scheduler's configuration: %w", err)
	}
	c.arguments["kube-scheduler"] = append([]string{"--config=" + dir("scheduler.yaml"), "--secure-port=" + strconv.Itoa(c.scheduler)},
		c.common()...)
	if c.scheduler > 0 {
		c.arguments["kube-scheduler"] = append(c.arguments["kube-scheduler"], "--bind-address=127.0.0.1",
			"--cert-dir="+dir("scheduler-certificate"),
			"--client-ca-file="+c.authority.CertFile(), "--authentication-kubeconfig="+dir("scheduler.kubeconfig"),
			"--authorization-kubeconfig="+dir("scheduler.kubeconfig"))
	}
	return nil
}

// Gateway is the unix socket on which the nodes of the cluster in dir let the API server reach pods.
func Gateway(dir string) string { return filepath.Join(dir, "gateway.sock") }

// emulated are the minor versions of Kubernetes that its components can emulate: three before their own.
var emulated = []string{"1.33", "1.34", "1.35", "1.36"}

func checkEmulated(kubernetes string) error {
	if kubernetes != "" && !slices.Contains(emulated, kubernetes) {
		return fmt.Errorf("start the control plane as Kubernetes %q: its programs emulate %s", kubernetes, strings.Join(emulated, ", "))
	}
	return nil
}

// common are the flags that every component of Kubernetes gets: feature gates and the emulated version.
func (c *ControlPlane) common() []string {
	var flags []string
	if c.options.Kubernetes != "" {
		flags = append(flags, "--emulated-version="+c.options.Kubernetes)
	}
	if len(c.options.FeatureGates) == 0 {
		return flags
	}
	var gates []string
	for name, on := range c.options.FeatureGates {
		gates = append(gates, fmt.Sprintf("%s=%t", name, on))
	}
	slices.Sort(gates)
	return append(flags, "--feature-gates="+strings.Join(gates, ","))
}

func unversioned(config *rest.Config) *rest.Config {
	config = rest.CopyConfig(config)
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme.Scheme).WithoutConversion()
	return config
}
