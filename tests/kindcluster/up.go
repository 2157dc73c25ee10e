package kindcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gpufabric.io/build/repository"
	"gpufabric.io/build/steps"
	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/docker"
	"gpufabric.io/tests/kindcluster/nodeimage"
	"gpufabric.io/tests/kindcluster/registry"
)

// Options define what cluster to bring up.
type Options struct {
	Name         string          // DefaultName if empty
	Workers      int             // beside the one control plane
	FeatureGates map[string]bool // of every Kubernetes component
	Printer      *steps.Printer  // progress
}

// How long nodes and system pods may take to become ready after kind made them; 20 s is usual on two cores.
const readyPatience = "300s"

// Up brings a cluster up, or returns the one that is up already and answers. An error ends with the place of the logs. What
// remains of the cluster can be inspected until Down or the next Up.
func Up(ctx context.Context, o Options) (*Cluster, error) {
	if o.Name == "" {
		o.Name = DefaultName
	}
	root, err := repository.Root()
	if err != nil {
		return nil, err
	}
	if c, err := Find(o.Name); err == nil && c.answers(ctx) {
		fmt.Fprintf(o.Printer, "cluster %s is up already (kubeconfig %s)\n", c.Name, c.Kubeconfig)
		return c, nil
	} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err := os.MkdirAll(filepath.Join(root, ".cache"), 0o755); err != nil {
		return nil, err
	}

	b := &bringUp{Options: o, cluster: &Cluster{Name: o.Name, Kubeconfig: kubeconfigPath(root, o.Name)}}
	started := time.Now()
	timings, err := o.Printer.Run(ctx,
		dockerAnswers{},
		inotify{o.Printer, inotifyInstances},
		commands{b},
		nodeImage{b},
		nodes{b},
		containerSys{b.cluster},
		podNetwork{b},
		imageRegistry{b},
		readiness{b},
	)
	b.cluster.Took = time.Since(started)
	for _, t := range timings {
		b.cluster.Timings = append(b.cluster.Timings, Timing{t.Name, t.Took.Seconds()})
	}
	if err == nil {
		err = b.cluster.record(root)
	}
	if err != nil && b.created {
		// The caller's context may have ended the bring-up.
		logs, logsErr := exportLogs(context.WithoutCancel(ctx), root, o.Name)
		if logsErr != nil {
			return nil, fmt.Errorf("bring up cluster %s: %w\nlogs of its nodes, as far as they could be had (%w): %s", o.Name, err, logsErr, logs)
		}
		return nil, fmt.Errorf("bring up cluster %s: %w\nlogs of its nodes: %s", o.Name, err, logs)
	}
	if err != nil {
		return nil, fmt.Errorf("bring up cluster %s: %w", o.Name, err)
	}
	return b.cluster, nil
}

// answers reports whether the cluster's API server is ready.
func (c *Cluster) answers(ctx context.Context) bool {
	_, err := c.Kubectl(ctx, nil, "get", "--raw", "/readyz", "--request-timeout", "5s")
	return err == nil
}

// bringUp has the data that the steps share.
type bringUp struct {
	Options
	cluster *Cluster
	created bool // there are nodes to export logs from
}

type dockerAnswers struct{}

func (dockerAnswers) Name() string                      { return "Docker" }
func (dockerAnswers) Execute(ctx context.Context) error { return docker.Answers(ctx) }

type commands struct{ *bringUp }

func (commands) Name() string { return "kind and kubectl" }

func (s commands) Execute(ctx context.Context) error {
	tools, err := toolchain.New(s.Printer)
	if err != nil {
		return err
	}
	_, err = tools.Ensure(ctx, "kind", "kubectl")
	return err
}

type nodeImage struct{ *bringUp }

func (nodeImage) Name() string { return "Node image with Kubernetes " + toolchain.Kubernetes }

func (s nodeImage) Execute(ctx context.Context) error {
	image, err := nodeimage.Ensure(ctx, s.Printer)
	s.cluster.Image, s.cluster.Published = image.Name, image.Published
	return err
}

type nodes struct{ *bringUp }

func (s nodes) Name() string { return fmt.Sprintf("One control plane and %d workers", s.Workers) }

func (s nodes) Execute(ctx context.Context) error {
	host, err := inspectHost(ctx)
	if err != nil {
		return err
	}
	host.CannotPullKindnetd = !s.cluster.Published
	config, err := kindConfiguration(s.Options, host)
	if err != nil {
		return err
	}
	// A cluster that an earlier bring-up left incomplete cannot be used.
	if err := Down(ctx, s.Options.Name); err != nil {
		return err
	}
	s.created = true
	if err := runKind(ctx, strings.NewReader(config), "create", "cluster", "--name", s.Options.Name, "--config", "-", "--image",
		s.cluster.Image,
		"--kubeconfig", s.cluster.Kubeconfig, "--retain"); err != nil {
		return err
	}
	names, err := s.cluster.Kubectl(ctx, nil, "get", "nodes", "--output", "jsonpath={.items[*].metadata.name}")
	s.cluster.Nodes = strings.Fields(names)
	return err
}

type imageRegistry struct{ *bringUp }

func (imageRegistry) Name() string { return "Registry that every image is asked of first" }

func (s imageRegistry) Execute(ctx context.Context) error {
	network := os.Getenv("KIND_EXPERIMENTAL_DOCKER_NETWORK") // kind's own variable
	if network == "" {
		network = "kind"
	}
	var err error
	s.cluster.Registry, err = registry.Start(ctx, registryName(s.Options.Name), network)
	if err != nil {
		return err
	}
	for _, node := range s.cluster.Nodes {
		if err := writeFile(ctx, node, "/etc/containerd/certs.d/_default/hosts.toml", s.cluster.Registry.HostsFile()); err != nil {
			return err
		}
	}
	return nil
}

type readiness struct{ *bringUp }

func (readiness) Name() string { return "Nodes and system pods ready" }

func (s readiness) Execute(ctx context.Context) error {
	for _, args := range [][]string{
		{"wait", "nodes", "--all", "--for=condition=Ready", "--timeout=" + readyPatience},
		{"--namespace=kube-system", "rollout", "status", "daemonset/kube-proxy", "--timeout=" + readyPatience},
		{"--namespace=kube-system", "rollout", "status", "deployment/coredns", "--timeout=" + readyPatience},
		{"--namespace=default", "wait", "serviceaccount/default", "--for=create", "--timeout=" + readyPatience},
	} {
		if _, err := s.cluster.Kubectl(ctx, nil, args...); err != nil {
			return err
		}
	}
	return nil
}

// writeFile writes a file, with its parent directories, inside a node.
func writeFile(ctx context.Context, node, path, content string) error {
	_, err := docker.RunWith(ctx, strings.NewReader(content), "exec", "--interactive", node, "sh", "-c",
		`mkdir -p "$(dirname "$0")" && cat >"$0"`, path)
	return err
}
