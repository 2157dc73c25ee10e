// Package controlplane runs a real Kubernetes control plane (etcd, kube-apiserver, kube-controller-manager and
// kube-scheduler) as ordinary processes on loopback addresses. It needs neither root nor containers.
package controlplane

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"time"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"gpufabric.io/tests/simcluster/pki"
	"gpufabric.io/tests/simcluster/process"
)

// Programs are the names under which Options.Binaries must hold paths.
var programs = [...]string{"etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"}

// Programs lists the programs that Start needs.
func Programs() []string { return programs[:] }

// Options define where and how the control plane runs.
type Options struct {
	// Dir holds everything the control plane writes: certificates, etcd's data, logs, kubeconfigs.
	Dir string
	// Binaries maps each of Programs to the path of its executable.
	Binaries map[string]string
	// Port is the API server's; 0 picks a free one.
	Port int
	// Detach lets the processes outlive the caller.
	Detach bool
	// Audit are namespaces whose service accounts' requests are written to AuditLog (one JSON event a line, metadata only).
	Audit []string
	// AuditAdmin has the administrator's requests written there too.
	AuditAdmin bool
	// NodeGrace is how long a node's lease may be silent before its node counts as unreachable; 0 is Kubernetes' 50 s.
	NodeGrace time.Duration
	// FeatureGates are passed to every component, e.g. {"DRADeviceTaintRules": true}.
	FeatureGates map[string]bool
	// Kubernetes is the earlier minor version whose behaviour every component shows, such as 1.35; empty: their own. It is what
	// --emulated-version gives: API versions, fields and gates of then. Validation, and what was a fault then, are of today.
	Kubernetes string
	// SchedulerProfiling has the scheduler serve /debug/pprof where Scheduler says.
	SchedulerProfiling bool
	// APIs are served besides those that the API server serves by itself, e.g. "scheduling.k8s.io/v1alpha2".
	APIs []string
}

// ControlPlane is a running control plane.
type ControlPlane struct {
	options   Options
	authority *pki.Authority
	server    string // the API server's URL
	processes map[string]*process.Process
	arguments map[string][]string
	scheduler int // the port that the scheduler serves on; 0: none
}

// Start brings the control plane up and returns when it serves. On an error, what it started is stopped again.
func Start(ctx context.Context, options Options) (_ *ControlPlane, err error) {
	for _, name := range programs {
		if options.Binaries[name] == "" {
			return nil, fmt.Errorf("start the control plane: no path of %s given", name)
		}
	}
	if err := checkEmulated(options.Kubernetes); err != nil {
		return nil, err
	}
	authority, err := pki.Create(filepath.Join(options.Dir, "pki"))
	if err != nil {
		return nil, err
	}
	c := &ControlPlane{options: options, authority: authority, processes: map[string]*process.Process{}, arguments: map[string][]string{}}
	defer func() {
		if err != nil {
			c.Stop()
		}
	}()
	ports, err := choosePorts(options.Port)
	if err != nil {
		return nil, err
	}
	c.server = fmt.Sprintf("https://127.0.0.1:%d", ports.apiServer)
	if err := c.configure(ports); err != nil {
		return nil, err
	}

	// etcd and the API server start together: the API server's own start takes longer than etcd's.
	for _, name := range []string{"etcd", "kube-apiserver"} {
		if err := c.run(name); err != nil {
			return nil, err
		}
	}
	if err := c.awaitServer(ctx); err != nil {
		return nil, err
	}
	for _, name := range []string{"kube-controller-manager", "kube-scheduler"} {
		if err := c.run(name); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// Stop ends the processes, the API server's clients first.
func (c *ControlPlane) Stop() {
	// Two seconds: the API server would otherwise drain watches for a minute, and nothing here outlives the cluster.
	for _, name := range []string{"kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd"} {
		if p := c.processes[name]; p != nil {
			p.Stop(2 * time.Second)
		}
	}
}

// Err reports which component ended unexpectedly, nil while all run.
func (c *ControlPlane) Err() error {
	for _, p := range c.processes {
		if err := p.Err(); err != nil {
			return err
		}
	}
	return nil
}

// Process is the running process of one of Programs, for tests that kill or pause it.
func (c *ControlPlane) Process(name string) *process.Process { return c.processes[name] }

// Restart starts a component that was killed, with the arguments it had, and returns when the API server answers.
func (c *ControlPlane) Restart(ctx context.Context, name string) error {
	if p := c.processes[name]; p != nil {
		p.Kill()
	}
	if err := c.run(name); err != nil {
		return err
	}
	return c.awaitServer(ctx)
}

// Scheduler is how the administrator reaches the scheduler's own port, which Options.SchedulerProfiling opens.
func (c *ControlPlane) Scheduler() *rest.Config {
	config, err := c.Admin()
	if err != nil {
		return &rest.Config{}
	}
	config.Host = fmt.Sprintf("https://127.0.0.1:%d", c.scheduler)
	config.CAFile, config.CAData, config.Insecure = "", nil, true // it signs its certificate itself
	return config
}

// Change ends the components of Kubernetes and starts them as other programs, or with other feature gates: an upgrade, a rollback, or gates
// that an administrator switches. etcd and its data stay.
func (c *ControlPlane) Change(ctx context.Context, binaries map[string]string, gates map[string]bool) error {
	names := []string{"kube-apiserver", "kube-controller-manager", "kube-scheduler"}
	for _, name := range slices.Backward(names) {
		c.processes[name].Stop(2 * time.Second)
	}
	before := c.common()
	c.options.Binaries, c.options.FeatureGates = binaries, gates
	for _, name := range names {
		arguments := slices.DeleteFunc(c.arguments[name], func(argument string) bool { return slices.Contains(before, argument) })
		c.arguments[name] = append(arguments, c.common()...)
		if err := c.run(name); err != nil {
			return err
		}
		if name == "kube-apiserver" {
			if err := c.awaitServer(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// Kubeconfig is the path of the administrator's kubeconfig.
func (c *ControlPlane) Kubeconfig() string { return filepath.Join(c.options.Dir, "kubeconfig") }

// AuditLog is the API server's audit log of the cluster in dir; the file exists where Options.Audit was set.
func AuditLog(dir string) string { return filepath.Join(dir, "audit.log") }

// Admin is the administrator's configuration, without client-side rate limits.
func (c *ControlPlane) Admin() (*rest.Config, error) {
	return LoadConfig(c.Kubeconfig())
}

// Access is what a process of the cluster needs to make its own clients.
type Access struct {
	Server string
	// Pods is the URL by which pods reach the API server where that is not Server.
	Pods      string
	authority *pki.Authority
}

// Access gives out client configurations for this cluster.
func (c *ControlPlane) Access() *Access { return &Access{Server: c.server, authority: c.authority} }

// OpenAccess makes the Access of the cluster whose files are in dir, from any process.
func OpenAccess(dir string) (*Access, error) {
	config, err := LoadConfig(filepath.Join(dir, "kubeconfig"))
	if err != nil {
		return nil, err
	}
	authority, err := pki.Load(filepath.Join(dir, "pki"))
	if err != nil {
		return nil, err
	}
	return &Access{Server: config.Host, authority: authority}, nil
}

// Node is the configuration a node's kubelet would have: the user system:node:NAME.
func (a *Access) Node(name string) (*rest.Config, error) {
	pair, err := a.authority.Client("system:node:"+name, "system:nodes")
	if err != nil {
		return nil, err
	}
	config := a.anonymous()
	config.CertData, config.KeyData = pair.Cert, pair.Key
	return config, nil
}

// Token is a configuration that reads its bearer token from a file, as pods do.
func (a *Access) Token(tokenFile string) *rest.Config {
	config := a.anonymous()
	if a.Pods != "" {
		config.Host = a.Pods
	}
	config.BearerTokenFile = tokenFile
	return config
}

// Serving is a certificate for a server of the cluster, which its pods trust as they trust the API server.
func (a *Access) Serving(name string, addresses ...net.IP) (tls.Certificate, error) {
	pair, err := a.authority.Server(name, nil, addresses)
	if err != nil {
		return tls.Certificate{}, err
	}
	certificate, err := tls.X509KeyPair(pair.Cert, pair.Key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("load the certificate of %s: %w", name, err)
	}
	return certificate, nil
}

// CA is the certificate that a client verifies the API server by, PEM.
func (a *Access) CA() []byte { return a.authority.CertPEM() }

func (a *Access) anonymous() *rest.Config {
	return &rest.Config{Host: a.Server, TLSClientConfig: rest.TLSClientConfig{CAData: a.authority.CertPEM()}}
}

// LoadConfig reads a kubeconfig; the API server's own flow control replaces the client's rate limit.
func LoadConfig(kubeconfig string) (*rest.Config, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("read the kubeconfig: %w", err)
	}
	config.QPS = -1
	return config, nil
}

func (c *ControlPlane) run(name string) error {
	p, err := process.Start(process.Spec{
		Name:       name,
		ClusterDir: c.options.Dir,
		LogDir:     filepath.Join(c.options.Dir, "logs"),
		Path:       c.options.Binaries[name],
		Args:       c.arguments[name],
		Detach:     c.options.Detach,
	})
	if err != nil {
		return err
	}
	c.processes[name] = p
	return nil
}

func (c *ControlPlane) awaitServer(ctx context.Context) error {
	config, err := c.Admin()
	if err != nil {
		return err
	}
	config.Timeout = 2 * time.Second
	client, err := rest.UnversionedRESTClientFor(unversioned(config))
	if err != nil {
		return fmt.Errorf("make the administrator's client: %w", err)
	}
	return c.processes["kube-apiserver"].Await(ctx, 50*time.Millisecond, func(ctx context.Context) error {
		if err := c.processes["etcd"].Err(); err != nil {
			return err
		}
		return client.Get().AbsPath("/readyz").Do(ctx).Error()
	})
}

// writeKubeconfig writes a kubeconfig that works from any directory: certificates are inside.
func (c *ControlPlane) writeKubeconfig(path, user string, groups ...string) error {
	pair, err := c.authority.Client(user, groups...)
	if err != nil {
		return err
	}
	config := clientcmdapi.NewConfig()
	config.Clusters["simcluster"] = &clientcmdapi.Cluster{Server: c.server, CertificateAuthorityData: c.authority.CertPEM()}
	config.AuthInfos[user] = &clientcmdapi.AuthInfo{ClientCertificateData: pair.Cert, ClientKeyData: pair.Key}
	config.Contexts["simcluster"] = &clientcmdapi.Context{Cluster: "simcluster", AuthInfo: user}
	config.CurrentContext = "simcluster"
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return fmt.Errorf("write the kubeconfig of %s: %w", user, err)
	}
	return os.Chmod(path, 0o600)
}
