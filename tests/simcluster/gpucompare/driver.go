package gpucompare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"google.golang.org/grpc"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
)

const (
	// startLimit is how long a plugin may take to publish its devices.
	startLimit = 60 * time.Second
	// stopPatience is how long it may take to end.
	stopPatience = 10 * time.Second
)

// driver is one driver on its node.
type driver struct {
	options Options
	client  kubernetes.Interface
	result  Result

	program string
	// arguments and environment of the program; mig reports whether GPUs may be divided.
	arguments func(d *driver, mig bool) (arguments, environment []string)

	// node is the node's name; dir has its hardware in n and its kubelet's directory in k, cdi is its CDI directory.
	node, dir, cdi string
	process        *exec.Cmd
	exited         chan error
	kubelet        *grpc.ClientConn

	// pool and devices as published last: the whole GPUs, and one MIG device of a GPU that is not the first.
	pool           string
	gpus           []string
	mig, migParent string
}

func newDriver(options Options, client kubernetes.Interface, name, program string) *driver {
	return &driver{
		options: options, client: client, program: program, node: name,
		dir: filepath.Join(options.Dir, name[:1]), cdi: filepath.Join(options.Dir, name[:1], "cdi"),
		result: Result{Driver: name, Times: map[string][]time.Duration{}, Memory: map[string]memory{}, Requests: map[string]float64{}},
	}
}

func ours(options Options, kubeconfig string, client kubernetes.Interface) *driver {
	d := newDriver(options, client, "ours", options.Ours)
	d.arguments = func(d *driver, mig bool) ([]string, []string) {
		arguments := []string{
			"gpu-plugin", "--node-name=" + d.node, "--driver-root=" + d.path("n/driver"), "--sysfs-root=" + d.path("n/sys"),
			"--dev-root=" + d.path("n/dev"),
			"--proc-devices=" + d.path("n/proc/devices"), "--cdi-root=" + d.cdi, "--kubelet-root=" + d.path("k"), "--state-dir=" + d.path("state"),
			"--mps-dir=" + d.path("mps"), "--handover-dir=" + d.path("handover"),
		}
		if mig {
			arguments = append(arguments, `--forms={"default": {"form": "flexible"}}`)
		}
		return arguments, []string{"KUBECONFIG=" + kubeconfig}
	}
	return d
}

func theirs(options Options, kubeconfig string, client kubernetes.Interface) *driver {
	d := newDriver(options, client, "theirs", options.Theirs)
	d.arguments = func(d *driver, mig bool) ([]string, []string) {
		arguments := []string{
			"--node-name=" + d.node, "--namespace=default", "--cdi-root=" + d.cdi, "--nvidia-driver-root=" + d.path("n/driver"),
			"--container-driver-root=" + d.path("n/driver"), "--nvidia-cdi-hook-path=/bin/true", "--image-name=none",
			"--kubelet-registrar-directory-path=" + d.path("k/plugins_registry"), "--kubelet-plugins-directory-path=" + d.path("k/plugins"),
			"--kubeconfig=" + kubeconfig,
		}
		environment := []string{"NVIDIA_DRA_SYSFS_ROOT=" + d.path("n/sys")}
		if mig {
			environment = append(environment, "FEATURE_GATES=DynamicMIG=true")
		}
		return arguments, environment
	}
	return d
}

func (d *driver) path(name string) string { return filepath.Join(d.dir, name) }

// render makes the node: its tree and its object.
func (d *driver) render(ctx context.Context) error {
	if err := d.renderTree(ctx); err != nil {
		return err
	}
	_, err := d.client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: d.node}}, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("make node %s: %w", d.node, err)
	}
	return nil
}

// renderTree makes the node's hardware and the directories that a driver needs.
func (d *driver) renderTree(ctx context.Context) error {
	for _, dir := range []string{d.cdi, d.path("k/plugins"), d.path("k/plugins_registry"), d.path("state"), d.path("mps"),
		d.path("handover")} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make the node's directories: %w", err)
		}
	}
	if err := d.fakeFabric(ctx, "render", "--profile", profileName, "--node", "0", "--nodes", "1", "--root", d.path("n"), "--library-dir",
		d.options.Libraries); err != nil {
		return err
	}
	// The other driver looks for device nodes under the driver root.
	if err := os.Symlink("../dev", d.path("n/driver/dev")); err != nil && !errors.Is(err, os.ErrExist) {
		return fmt.Errorf("link the devices into the driver root: %w", err)
	}
	return nil
}

// inject injects an event into the node's hardware.
func (d *driver) inject(ctx context.Context, event ...string) error {
	return d.fakeFabric(ctx, append([]string{"inject", "--root", d.path("n")}, event...)...)
}

func (d *driver) fakeFabric(ctx context.Context, args ...string) error {
	if out, err := exec.CommandContext(ctx, d.options.FakeFabric, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("fakefabric %s: %w: %s", args[0], err, out)
	}
	return nil
}

// restart ends the plugin and starts it on a node without slices; the result is how long it took to publish them.
func (d *driver) restart(ctx context.Context, mig bool) (time.Duration, error) {
	d.stop()
	slices := d.client.ResourceV1().ResourceSlices()
	if err := slices.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{FieldSelector: "spec.nodeName=" + d.node}); err != nil {
		return 0, fmt.Errorf("delete the ResourceSlices of %s: %w", d.node, err)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startLimit, fmt.Errorf("nothing was published in %s; the log is %s", startLimit,
		d.path("log")))
	defer cancel()
	published, err := d.awaitPublished(ctx, mig)
	if err != nil {
		return 0, err
	}
	log, err := os.Create(d.path("log"))
	if err != nil {
		return 0, fmt.Errorf("make the plugin's log: %w", err)
	}
	defer log.Close() //nolint:errcheck // the child has its own
	arguments, environment := d.arguments(d, mig)
	d.process = exec.Command(d.program, arguments...)
	if mig {
		// The other driver reads MIG instances' capabilities and device numbers in /proc itself, so both get the node's there, in a
		// mount namespace of their own.
		script := []string{
			"-rm", "sh", "-c", `mount --bind "$0/driver" /proc/driver && mount --bind "$0/devices" /proc/devices && exec "$@"`,
			d.path("n/proc"), d.program,
		}
		d.process = exec.Command("unshare", append(script, arguments...)...)
	}
	d.process.Env = append([]string{"PATH=/usr/bin:/bin", "NODE_NAME=" + d.node}, environment...)
	d.process.Stdout, d.process.Stderr = log, log
	d.process.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	began := time.Now()
	if err := d.process.Start(); err != nil {
		return 0, fmt.Errorf("start %s: %w", d.program, err)
	}
	d.exited = make(chan error, 1)
	go func() { d.exited <- d.process.Wait() }()
	select {
	case at := <-published:
		return at.Sub(began), d.dial()
	case err := <-d.exited:
		d.process = nil
		return 0, fmt.Errorf("%s ended: %w; its log is %s", d.program, err, d.path("log"))
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	}
}

// stop ends the plugin, if it runs.
func (d *driver) stop() {
	if d.kubelet != nil {
		_ = d.kubelet.Close()
		d.kubelet = nil
	}
	if d.process == nil {
		return
	}
	_ = d.process.Process.Signal(syscall.SIGTERM)
	select {
	case <-d.exited:
	case <-time.After(stopPatience):
		_ = d.process.Process.Kill()
		<-d.exited
	}
	d.process = nil
}

// readMemory reads how much memory the process uses now.
func (d *driver) readMemory(when string) error {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", d.process.Process.Pid))
	if err != nil {
		return fmt.Errorf("read the plugin's memory: %w", err)
	}
	var now memory
	for line := range strings.Lines(string(status)) {
		name, rest, _ := strings.Cut(line, ":")
		kib, _ := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")))
		switch name {
		case "RssAnon":
			now.anonymous = kib
		case "VmRSS":
			now.resident = kib
		}
	}
	d.result.Memory[when] = now
	return nil
}
