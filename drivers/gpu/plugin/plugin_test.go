package plugin

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	dynamicfake "k8s.io/client-go/dynamic/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/programs"
	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/capability"
	"gpufabric.io/drivers/node/capability/capabilitytest"
	"gpufabric.io/drivers/node/options"
	"gpufabric.io/drivers/node/tmpfs"
)

// bench runs the role on its own machine with a fake API server, and talks to it as the kubelet does.
type bench struct {
	testing.TB
	machine *gputest.Machine
	lib     nvml.Interface
	client  *fake.Clientset
	objects *dynamicfake.FakeDynamicClient
	kubelet drapb.DRAPluginClient
	options Options
	writer  atomicfile.Writer // its Before, where set, sees the role's writes
	// Runs programs of the driver in their own root; nil: the role's default
	enter   func(enclosure, program string, args ...string) *exec.Cmd
	recheck time.Duration               // how often the role checks what has no event; 0: its default
	reports chan v1alpha1.MIGLayoutNode // the node's reports on MIGLayouts
	offered offered
	made    int                                        // objects of the API group gpufabric.io
	wrap    func(*fake.Clientset) kubernetes.Interface // wraps the client that the role gets; nil: no wrapping
	missing capability.Missing                         // features that the API server lacks; set it while the role is stopped
	busy    atomic.Bool                                // an API server that takes half a second to update a slice
	role    atomic.Pointer[starter]                    // the most recently started role
	sysfs   func(path, text string) error              // writes to attributes of sysfs; nil: the kernel's
	board   *board                                     // the GPUs' NVSwitches; nil: there are none
	stop    func()
}

func newBench(t testing.TB, machine *gputest.Machine, change ...func(*Options)) *bench {
	t.Helper()
	b := benchOn(t, machine, machine.Root, change...)
	b.machine = machine
	return b
}

// benchOn runs the role with an NVML and a tree of files.
func benchOn(t testing.TB, lib nvml.Interface, root string, change ...func(*Options)) *bench {
	t.Helper()
	dir, err := os.MkdirTemp("", "gpu") // a socket's path must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, of := range []string{"accounts", "cores"} { // of claims that are still prepared
			mounted, _ := filepath.Glob(filepath.Join(dir, "state", of, "*"))
			for _, path := range mounted {
				_ = tmpfs.Remove(path)
			}
		}
		_ = os.RemoveAll(dir)
	})
	b := &bench{TB: t, lib: lib, options: Options{
		Node: options.Node{
			DriverRoot: filepath.Join(root, "driver"), SysfsRoot: filepath.Join(root, "sys"), DevRoot: filepath.Join(root, "dev"),
			ProcDevices: filepath.Join(root, "proc/devices"), CDIRoot: filepath.Join(dir, "cdi"), KubeletRoot: filepath.Join(dir, "kubelet"),
			StateDir: filepath.Join(dir, "state"), NodeName: "n1",
		},
		Forms: `{"default": {"form": "flexible"}}`, MIG: "dynamic", UnknownMIG: "keep", ShareCores: 10, Limits: limitsNone,
		HandoverDir: filepath.Join(dir, "handover"), HandoverTo: []string{"volcano"}, MPSDir: filepath.Join(dir, "mps"),
	}}
	for _, c := range change {
		c(&b.options)
	}
	b.client = fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", UID: "node-uid"}})
	b.objects = dynamicfake.NewSimpleDynamicClientWithCustomListKinds(runtime.NewScheme(), map[schema.GroupVersionResource]string{
		{Group: "gpufabric.io", Version: "v1alpha1", Resource: "miglayouts"}:   "MIGLayoutList",
		{Group: "gpufabric.io", Version: "v1alpha1", Resource: "vgpuprofiles"}: "VGPUProfileList",
	})
	b.collectReports()
	b.client.PrependReactor("*", "resourceslices", b.offered.record) // none may be added while requests run
	// The fake API server does not implement generateName.
	var named atomic.Int32
	b.client.PrependReactor("create", "resourceslices", func(action k8stesting.Action) (bool, runtime.Object, error) {
		slice := action.(k8stesting.CreateAction).GetObject().(*resourceapi.ResourceSlice)
		if slice.Name == "" {
			slice.Name = fmt.Sprintf("%s%03d", slice.GenerateName, named.Add(1))
		}
		return false, nil, nil
	})
	capabilitytest.DryRuns(b.client, func() capability.Missing { return b.missing })
	b.client.PrependReactor("update", "resourceslices", func(k8stesting.Action) (bool, runtime.Object, error) {
		if b.busy.Load() {
			time.Sleep(500 * time.Millisecond)
		}
		return false, nil, nil
	})
	b.start()
	t.Cleanup(func() { b.stop() })
	return b
}

// start runs the role, and returns when it answers.
func (b *bench) start() {
	b.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		defer cancel() // ends the waits on the role
		enter := b.enter
		if enter == nil {
			enter = programs.Reexec(role, driverProgram)
		}
		var client kubernetes.Interface = b.client
		if b.wrap != nil {
			client = b.wrap(b.client)
		}
		s := &starter{options: b.options, lib: b.lib, client: client, objects: b.objects, enter: enter,
			tuning: tuning{writer: b.writer, writeSysfs: b.sysfs, recheck: b.recheck, settle: b.recheck, start: time.Hour,
				labels: 100 * time.Millisecond}}
		if b.board != nil {
			s.tuning.fabric, s.tuning.modules = b.board, b.board.modules
		}
		b.role.Store(s)
		ended <- s.run(ctx)
	}()
	b.stop = func() {
		cancel()
		if err := <-ended; err != nil {
			b.Errorf("the role ended with %v", err)
		}
		b.stop = func() {}
	}
	socket := filepath.Join(b.options.KubeletRoot, "plugins", devices.Driver, "dra.sock")
	conn, err := grpc.NewClient("unix://"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: 5 * time.Millisecond, Multiplier: 1.2,
			MaxDelay: 50 * time.Millisecond}}))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = conn.Close() })
	b.kubelet = drapb.NewDRAPluginClient(conn)
	deadline := time.Now().Add(time.Minute)
	for {
		if _, err := b.kubelet.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{}, grpc.WaitForReady(true)); err == nil {
			return
		} else if ctx.Err() != nil {
			b.stop = func() {}
			b.Fatalf("the role ended with %v", <-ended)
		} else if time.Now().After(deadline) {
			b.Fatalf("the role does not answer: %v", err)
		}
	}
}

// running is the role's plugin that runs now.
func (b *bench) running() *plugin { return b.role.Load().current.Load() }

// slices waits until the pool is completely published.
func (b *bench) slices() []resourceapi.ResourceSlice {
	b.Helper()
	w, err := b.client.ResourceV1().ResourceSlices().Watch(context.Background(), metav1.ListOptions{})
	if err != nil {
		b.Fatal(err)
	}
	defer w.Stop()
	timeout := time.After(time.Minute)
	for {
		list, err := b.client.ResourceV1().ResourceSlices().List(context.Background(), metav1.ListOptions{})
		if err != nil {
			b.Fatal(err)
		}
		if len(list.Items) > 0 && int64(len(list.Items)) == list.Items[0].Spec.Pool.ResourceSliceCount {
			return list.Items
		}
		select {
		case <-w.ResultChan():
		case <-timeout:
			b.Fatalf("%d slices after a minute", len(list.Items))
		}
	}
}

// device is a device of a claim: its name, the request it serves and its share.
type device struct {
	name, request, share string
	capacity             map[string]string
	admin                bool // the claim observes it
}

// claim makes an allocated claim in the API.
func (b *bench) claim(uid string, configs []string, devs ...device) *resourceapi.ResourceClaim {
	b.Helper()
	return b.claimFrom(resourceapi.AllocationConfigSourceClaim, uid, configs, devs...)
}

// claimFrom is like claim, with configurations of the claim or of its DeviceClass.
func (b *bench) claimFrom(
	source resourceapi.AllocationConfigSource, uid string, configs []string, devs ...device,
) *resourceapi.ResourceClaim {
	b.Helper()
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "claim-" + uid, Namespace: "default", UID: types.UID(uid)}}
	allocation := &resourceapi.AllocationResult{}
	for _, d := range devs {
		request := d.request
		if request == "" {
			request = "r"
		}
		r := resourceapi.DeviceRequestAllocationResult{Driver: devices.Driver, Pool: devices.PoolName("n1"), Device: d.name, Request: request}
		if d.admin {
			r.AdminAccess = &d.admin
		}
		if d.share != "" {
			r.ShareID = (*types.UID)(&d.share)
			r.ConsumedCapacity = map[resourceapi.QualifiedName]quantity{}
			for name, value := range d.capacity {
				r.ConsumedCapacity[resourceapi.QualifiedName(name)] = parse(value)
			}
		}
		allocation.Devices.Results = append(allocation.Devices.Results, r)
	}
	for _, raw := range configs {
		allocation.Devices.Config = append(allocation.Devices.Config, resourceapi.DeviceAllocationConfiguration{
			Source: source,
			DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: &resourceapi.OpaqueDeviceConfiguration{
				Driver: devices.Driver, Parameters: runtime.RawExtension{Raw: []byte(raw)},
			}},
		})
	}
	c.Status.Allocation = allocation
	if err := b.client.Tracker().Add(c); err != nil {
		b.Fatal(err)
	}
	return c
}

// dialAgain has a call go on where the plugin starts its server again as it comes, for which the kubelet would ask once more.
var dialAgain = grpc.WaitForReady(true) //nolint:gochecknoglobals // a constant

// prepare prepares a claim as the kubelet does and returns the CDI IDs, or the error.
func (b *bench) prepare(c *resourceapi.ResourceClaim) ([]string, string) {
	b.Helper()
	answer, err := b.kubelet.NodePrepareResources(context.Background(), &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{
		{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)},
	}}, dialAgain)
	if err != nil {
		b.Fatal(err)
	}
	result := answer.Claims[string(c.UID)]
	var ids []string
	for _, d := range result.Devices {
		ids = append(ids, d.CdiDeviceIds...)
	}
	return ids, result.Error
}

// get reads a claim that was made before.
func (b *bench) get(uid string) *resourceapi.ResourceClaim {
	b.Helper()
	c, err := b.client.ResourceV1().ResourceClaims("default").Get(context.Background(), "claim-"+uid, metav1.GetOptions{})
	if err != nil {
		b.Fatal(err)
	}
	return c
}

// await waits for a condition that has no event.
func (b *bench) await(so func() bool, what string) {
	b.Helper()
	for deadline := time.Now().Add(time.Minute); !so(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			b.Fatalf("waited in vain: %s", what)
		}
	}
}

// refused prepares a claim until it is refused with one of the reasons, which it returns, and never prepared. A wait for another claim is
// given up soon, and tried again with more patience where a busy machine did not get as far as the reason.
func (b *bench) refused(c *resourceapi.ResourceClaim, reasons ...string) string {
	b.Helper()
	for patience := 200 * time.Millisecond; ; patience *= 2 {
		problem := b.prepareWithin(patience, c)
		if problem == "" {
			b.Fatalf("%s is prepared, want it refused with %q", c.Name, reasons)
		}
		if slices.ContainsFunc(reasons, func(reason string) bool { return strings.Contains(problem, reason) }) {
			return problem
		}
		if patience > time.Minute {
			b.Fatalf("%s is refused with %q, want %q", c.Name, problem, reasons)
		}
	}
}

// prepareWithin prepares a claim with less patience than the kubelet, and returns the error.
func (b *bench) prepareWithin(patience time.Duration, c *resourceapi.ResourceClaim) string {
	b.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second+patience) // the plugin answers three seconds early
	defer cancel()
	answer, err := b.kubelet.NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{
		{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)},
	}}, dialAgain)
	if err != nil {
		return err.Error()
	}
	return answer.Claims[string(c.UID)].Error
}

func (b *bench) mustPrepare(c *resourceapi.ResourceClaim) []string {
	b.Helper()
	ids, problem := b.prepare(c)
	if problem != "" {
		b.Fatalf("prepare %s: %s", c.Name, problem)
	}
	return ids
}

func (b *bench) unprepare(c *resourceapi.ResourceClaim) string {
	b.Helper()
	answer, err := b.kubelet.NodeUnprepareResources(context.Background(), &drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{
		{Namespace: c.Namespace, Name: c.Name, Uid: string(c.UID)},
	}}, dialAgain)
	if err != nil {
		return err.Error()
	}
	return answer.Claims[string(c.UID)].Error
}

// edits reads what a container gets for CDI IDs, from the spec on disk.
func (b *bench) edits(c *resourceapi.ResourceClaim, ids ...string) specs.ContainerEdits {
	b.Helper()
	data, err := os.ReadFile(filepath.Join(b.options.CDIRoot, "k8s.gpu.nvidia.com-claim_"+string(c.UID)+".json"))
	if err != nil {
		b.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil {
		b.Fatal(err)
	}
	var out specs.ContainerEdits
	for _, d := range spec.Devices {
		if slices.Contains(ids, spec.Kind+"="+d.Name) {
			out.Env = append(out.Env, d.ContainerEdits.Env...)
			out.DeviceNodes = append(out.DeviceNodes, d.ContainerEdits.DeviceNodes...)
			out.Mounts = append(out.Mounts, d.ContainerEdits.Mounts...)
		}
	}
	return out
}

func nodes(e specs.ContainerEdits) string {
	var out []string
	for _, n := range e.DeviceNodes {
		out = append(out, strings.TrimPrefix(n.Path, "/dev/"))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestPrepareGivesWholeGPUToContainer(t *testing.T) {
	b := newBench(t, gputest.New(t, 2))
	c := b.claim("u1", nil, device{name: "gpu-1"})
	ids := b.mustPrepare(c)
	e := b.edits(c, ids...)
	if got, want := nodes(e), "nvidia-uvm nvidia1 nvidiactl"; got != want {
		t.Errorf("device nodes %s, want %s", got, want)
	}
	if host := e.DeviceNodes[len(e.DeviceNodes)-1].HostPath; host != b.machine.Path("dev/nvidia1") {
		t.Errorf("nvidia1 comes from %s", host)
	}
	if !slices.ContainsFunc(e.Mounts, func(m *specs.Mount) bool { return m.ContainerPath == "/usr/lib64/libnvidia-ml.so.1" }) {
		t.Errorf("the driver's library is not mounted: %+v", e.Mounts)
	}
	if problem := b.unprepare(c); problem != "" {
		t.Error(problem)
	}
	for _, dir := range []string{b.options.CDIRoot, filepath.Join(b.options.StateDir, "claims")} {
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("%s after unprepare: %v, %v", dir, left, err)
		}
	}
}

func TestPluginPublishesPool(t *testing.T) {
	b := newBench(t, gputest.New(t, 2))
	var names []string
	for _, s := range b.slices() {
		if s.Spec.Driver != "gpu.nvidia.com" || s.Spec.Pool.Name != "n1-gpu" || s.Spec.NodeName == nil || *s.Spec.NodeName != "n1" {
			t.Errorf("slice of %s, pool %s", s.Spec.Driver, s.Spec.Pool.Name)
		}
		for _, d := range s.Spec.Devices {
			names = append(names, d.Name)
		}
	}
	if len(names) != 2*27 || !slices.Contains(names, "gpu-1-mig-1g5gb-me-20-6") || !slices.Contains(names, "gpu-0-shared") {
		t.Errorf("%d devices: %v", len(names), names)
	}
}
