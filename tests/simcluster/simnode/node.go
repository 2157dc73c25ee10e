// Package simnode simulates a node of a Kubernetes cluster. Where a driver could notice a difference, it runs the kubelet's own
// code: the plugin registration, the DRA manager and the device plugin server of k8s.io/kubernetes, which talk to the drivers
// over real unix sockets. The container runtime is simulated. The Runtime runs containers of its own images. Other containers
// are reported as Running with the devices that they would have received.
package simnode

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/sets"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
	"k8s.io/kubernetes/pkg/kubelet/cm/dra"
	kubeletconfig "k8s.io/kubernetes/pkg/kubelet/config"
	"k8s.io/kubernetes/pkg/kubelet/pluginmanager/cache"
)

// Access makes the clients of a node and of its pods.
type Access interface {
	// Node is the configuration of the node's own user, system:node:NAME.
	Node(name string) (*rest.Config, error)
	// Token is a configuration that reads its bearer token from a file.
	Token(file string) *rest.Config
}

// Runtime runs the containers whose programs are ours.
type Runtime interface {
	// Owns reports whether the Runtime runs containers of this image.
	Owns(image string) bool
	// Run runs a container until it ends or ctx is done; nil is exit status 0.
	Run(ctx context.Context, container Container) error
	// Exec runs a command beside a running container, as exec probes do.
	Exec(ctx context.Context, container Container, command []string) error
}

// Container is what a Runtime runs. File names in Args and Env are those of this machine.
type Container struct {
	Node, Namespace, Pod, Name string
	PodUID                     types.UID
	Image                      string
	Args                       []string
	Env                        map[string]string
	Output                     io.Writer
	// Address is the pod's address. In a pod's network namespace the program would listen on all addresses.
	Address string
	// REST is the configuration that the pod's service account has.
	REST *rest.Config
	// Real translates a name of the container's file system.
	Real func(name string) (string, bool)
	// Bundle is the file with what the container received, in the form of an OCI runtime's config.json.
	Bundle string
}

// Config describes what node to simulate.
type Config struct {
	Name   string
	Labels map[string]string
	// Machine has the node's architecture and capacity; nil is a compute tray of a GB200.
	Machine *corev1.Node
	// Slices are ResourceSlices that the node publishes itself, without a driver. Where they are not nil, no DRA driver can register, and
	// pods with claims start without devices: enough for a scheduler, and light.
	Slices []*resourceapi.ResourceSlice
	// Leaves ends the node when its Node object is deleted, as a machine that is given back. Otherwise its kubelet runs on.
	Leaves bool
	// Dir is the node's own directory. Unix sockets lie under it and their paths have at most 107 bytes: keep it short.
	Dir string
	// Hardware maps what the node has beside an ordinary file system: names on the node to directories of its fake tree.
	Hardware  []Mapping
	Addresses *Addresses
	Access    Access
	Runtime   Runtime
	Sockets   *SocketWatcher
	// PrepareRetry is the pause after a failed start of a pod; 0 is the kubelet's, about 75 s.
	PrepareRetry time.Duration
	// Heartbeat is how often the node's lease is renewed; 0 is the kubelet's 10 s.
	Heartbeat time.Duration
	// RestartBackoff is the pause before a container that ended is started again, doubled each time; 0 is the kubelet's 10 s.
	RestartBackoff time.Duration
	// MaxRestartBackoff is the longest of those pauses; 0 is the kubelet's 5 min.
	MaxRestartBackoff time.Duration
}

// Node is one simulated node.
type Node struct {
	config Config
	rest   *rest.Config
	client kubernetes.Interface
	paths  Paths
	bootID string
	dra    *dra.Manager
	device *deviceManager
	silent atomic.Bool
	left   atomic.Bool
	ahead  atomic.Int64 // how far its clock is ahead of the machine's, in nanoseconds

	mu      sync.Mutex
	object  *corev1.Node
	leave   context.CancelFunc // ends Run
	workers map[types.UID]*worker
}

// Names of the directories in a node's own one. They are short because of the sockets below them.
const (
	kubeletDir    = "k" // the node's /var/lib/kubelet
	rootDir       = "r" // everything else of the node's file system
	containersDir = "c" // one directory a pod: config.json of each container, its log, its volumes
)

// New makes a node in config.Dir. If a node used the directory before, the new one is that node after a reboot.
func New(config Config) (*Node, error) {
	restConfig, err := config.Access.Node(config.Name)
	if err != nil {
		return nil, err
	}
	restConfig.QPS = -1
	restConfig.UserAgent = "simcluster-node"
	client, err := kubernetes.NewForConfig(restConfig)
	if err != nil {
		return nil, fmt.Errorf("make the client of node %s: %w", config.Name, err)
	}
	if config.PrepareRetry == 0 {
		config.PrepareRetry = 75 * time.Second
	}
	if config.Heartbeat == 0 {
		config.Heartbeat = defaultHeartbeat
	}
	if config.RestartBackoff == 0 {
		config.RestartBackoff = 10 * time.Second
	}
	if config.MaxRestartBackoff == 0 {
		config.MaxRestartBackoff = maxRestartBackoff
	}
	n := &Node{config: config, rest: restConfig, client: client, bootID: uuid.NewString(), workers: map[types.UID]*worker{}}
	for _, dir := range []string{n.dir(kubeletDir, "plugins_registry"), n.dir(kubeletDir, "device-plugins"), n.dir(containersDir),
		n.dir(rootDir)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return nil, fmt.Errorf("make node %s: %w", config.Name, err)
		}
	}
	// /var/run is gone after a reboot.
	if err := os.RemoveAll(n.dir(rootDir, "var/run")); err != nil {
		return nil, fmt.Errorf("empty /var/run of node %s: %w", config.Name, err)
	}
	n.paths = NewPaths(append([]Mapping{
		{Path: "/", Real: n.dir(rootDir)},
		{Path: "/run", Real: n.dir(rootDir, "var/run")},
		{Path: "/var/lib/kubelet", Real: n.dir(kubeletDir)},
	}, config.Hardware...)...)
	return n, nil
}

// Name is the node's name.
func (n *Node) Name() string { return n.config.Name }

// Object is the Node object as last written.
func (n *Node) Object() *corev1.Node {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.object
}

// Silence stops (true) or resumes (false) the node's lease and its reports, as a lost network would. Its containers continue.
func (n *Node) Silence(ctx context.Context, silent bool) error {
	n.silent.Store(silent)
	if silent {
		return nil
	}
	if err := n.register(ctx); err != nil { // Ready again
		return err
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, w := range n.workers {
		w.notify()
	}
	return nil
}

// SetClock puts the node's clock ahead of the machine's, or behind it. Only the times that the kubelet writes into the node's lease follow
// it; Silence(ctx, false) and the next heartbeat write them.
func (n *Node) SetClock(ahead time.Duration) { n.ahead.Store(int64(ahead)) }

// Run registers the node and serves its pods until ctx is done. Then containers end as in a power loss.
func (n *Node) Run(ctx context.Context) error {
	logger := klog.LoggerWithValues(klog.FromContext(ctx), "node", n.config.Name)
	ctx, leave := context.WithCancel(klog.NewContext(ctx, logger))
	defer leave()
	n.mu.Lock()
	n.leave = leave
	n.mu.Unlock()
	if err := n.register(ctx); err != nil {
		return err
	}
	ready := kubeletconfig.NewSourcesReady(func(sets.Set[string]) bool { return true })
	handlers, err := n.startPlugins(ctx, ready)
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { n.heartbeat(ctx); return nil })
	group.Go(func() error {
		return n.config.Sockets.serve(ctx, n.dir(kubeletDir, "plugins_registry"), handlers)
	})
	group.Go(func() error { return n.servePods(ctx) })
	group.Go(func() error { n.device.publish(ctx); return nil })
	return group.Wait()
}

// startPlugins starts the managers of DRA drivers and of device plugins, and returns with which plugins register.
func (n *Node) startPlugins(ctx context.Context, ready kubeletconfig.SourcesReady) (map[string]cache.PluginHandler, error) {
	handlers := map[string]cache.PluginHandler{}
	if n.config.Slices != nil {
		if err := n.publishSlices(ctx); err != nil {
			return nil, err
		}
	} else {
		// It deletes the slices of drivers that are not registered.
		manager, err := dra.NewManager(klog.FromContext(ctx), n.client, n.dir(kubeletDir))
		if err != nil {
			return nil, fmt.Errorf("start the DRA manager of node %s: %w", n.config.Name, err)
		}
		n.dra = manager
		getNode := func(context.Context) (*corev1.Node, error) { return n.Object(), nil }
		if err := manager.Start(ctx, n.activePods, getNode, ready); err != nil {
			return nil, fmt.Errorf("start the DRA manager of node %s: %w", n.config.Name, err)
		}
		handlers[registerapi.DRAPlugin] = manager.GetWatcherHandler()
	}
	var err error
	if n.device, err = newDeviceManager(n); err != nil {
		return nil, err
	}
	handlers[registerapi.DevicePlugin] = n.device.handler()
	return handlers, n.device.start(ctx, ready)
}

// publishSlices creates the node's ResourceSlices, which go with the Node object.
func (n *Node) publishSlices(ctx context.Context) error {
	owner := metav1.OwnerReference{APIVersion: "v1", Kind: "Node", Name: n.config.Name, UID: n.Object().UID}
	for _, slice := range n.config.Slices {
		slice = slice.DeepCopy()
		slice.OwnerReferences = []metav1.OwnerReference{owner}
		_, err := n.client.ResourceV1().ResourceSlices().Create(ctx, slice, metav1.CreateOptions{})
		if err != nil && !apierrors.IsAlreadyExists(err) { // after a reboot they are there
			return fmt.Errorf("publish ResourceSlice %s: %w", slice.Name, err)
		}
	}
	return nil
}

// Left reports whether the node ended because its Node object was deleted, see Config.Leaves.
func (n *Node) Left() bool { return n.left.Load() }

func (n *Node) dir(elements ...string) string {
	return filepath.Join(append([]string{n.config.Dir}, elements...)...)
}
