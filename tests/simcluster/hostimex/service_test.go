package hostimex

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/fakes/imex"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fabric"
	"gpufabric.io/tests/simcluster/fixture"
)

// addressOf is the address in node i's Node object.
func addressOf(t *testing.T, i int) string {
	t.Helper()
	node, err := shared.Client.CoreV1().Nodes().Get(t.Context(), cluster.NodeName(i), metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range node.Status.Addresses {
		if address.Type == corev1.NodeInternalIP {
			return address.Address
		}
	}
	t.Fatalf("node %s has no address", node.Name)
	return ""
}

// start starts nvidia-imex on node i as its administrator would: through systemd, with these nodes in its list, and with a
// control socket. The returned function, or the end of the test, stops it.
func start(t *testing.T, i int, listed ...int) (stop func()) {
	t.Helper()
	dir := cluster.NodeDir(shared.Dir, i)
	etc := filepath.Join(dir, "r/etc/nvidia-imex")
	unit := filepath.Join(fabric.HardwareOf(dir), "sys/fs/cgroup/system.slice/nvidia-imex.service/cgroup.procs")
	for _, path := range []string{etc, filepath.Dir(unit)} {
		if err := os.MkdirAll(path, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	list := ""
	for _, other := range listed {
		list += addressOf(t, other) + "\n"
	}
	write(t, filepath.Join(etc, "nodes_config.cfg"), list)
	write(t, filepath.Join(etc, "config.cfg"), fmt.Sprintf("BIND_INTERFACE_IP=%s\nIMEX_CMD_ENABLED=1\nIMEX_CMD_UNIX_DOMAIN_PATH=%s\n"+
		"IMEX_NODE_CONFIG_FILE=%s\n", addressOf(t, i), filepath.Join(etc, "imex_ctrl.sock"), filepath.Join(etc, "nodes_config.cfg")))
	config, err := imex.ReadConfig(filepath.Join(etc, "config.cfg"))
	if err != nil {
		t.Fatal(err)
	}
	daemon, err := imex.New(config, imex.Options{Version: "580.173.02", HostName: cluster.NodeName(i),
		StateDir: filepath.Join(fabric.HardwareOf(dir), "state"),
		Resolve: func(_ context.Context, name string) ([]netip.Addr, error) {
			address, err := netip.ParseAddr(name)
			return []netip.Addr{address}, err
		}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- daemon.Run(ctx) }()
	select {
	case <-daemon.Started():
	case err := <-ended:
		t.Fatal(err)
	}
	write(t, unit, "4711\n")
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		write(t, unit, "")
	}
	t.Cleanup(stop)
	return stop
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestServiceServesDomainsByAChannelEach(t *testing.T) {
	n := shared.Namespace(t)
	for i := range nodes {
		start(t, i, 0, 1)
	}
	holder := map[string]string{}
	for _, name := range []string{"first", "other"} {
		n.Domain(name, nodes)
		for i := range nodes {
			n.Pod(fmt.Sprintf("%s-%d", name, i), name+"-channel", cluster.NodeName(i))
		}
		n.AwaitDomain(name, domain.ReadyOn(nodes))
		var all []string
		for i := range nodes {
			pod := fmt.Sprintf("%s-%d", name, i)
			n.AwaitPod(pod, fixture.Running)
			all = append(all, n.DevicePaths(pod)...)
		}
		if slices.Sort(all); len(all) != nodes || len(slices.Compact(all)) != 1 {
			t.Fatalf("the domain's nodes have the channels %v", all)
		}
		if other, held := holder[all[0]]; held {
			t.Errorf("%s and %s both have %s", name, other, all[0])
		}
		holder[all[0]] = name
	}
	pods, err := n.Client.CoreV1().Pods(fixture.System).List(t.Context(),
		metav1.ListOptions{LabelSelector: "app.kubernetes.io/component=imex-daemon"})
	if err != nil || len(pods.Items) != 0 {
		t.Errorf("beside the nodes' own daemons %d of gpufabric run (%v)", len(pods.Items), err)
	}
}

func TestServiceDelaysAPodUntilItListsTheNodes(t *testing.T) {
	n := shared.Namespace(t)
	start(t, 0, 0, 1)
	n.Domain("d", nodes)
	n.Pod("rank-0", "d-channel", cluster.NodeName(0))
	n.AwaitPod("rank-0", fixture.Running)
	stop := start(t, 1, 1)
	n.Pod("rank-1", "d-channel", cluster.NodeName(1))
	n.AwaitEvent("rank-1", "HostIMEXNodesMissing", cluster.NodeName(0))
	stop()
	start(t, 1, 0, 1)
	n.AwaitPod("rank-1", fixture.Running)
	n.AwaitDomain("d", domain.ReadyOn(nodes))
}
