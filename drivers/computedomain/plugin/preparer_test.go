package plugin

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/utils/ptr"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/node/capability/capabilitytest"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/node/metrics"
	"gpufabric.io/drivers/node/options"
)

const (
	nodeName    = "node-a"
	system      = "gpufabric-system"
	domainUID   = types.UID("0f1c5d5e-9a5b-4f6e-8c39-5b2d6b0f8a11")
	cliqueID    = "69a19a31-f41c-45a5-8245-579b6bce5bdd.32766"
	procDevices = "Character devices:\n195 nvidia\n195 nvidiactl\n234 nvidia-caps-imex-channels\n235 nvidia-caps\n\nBlock devices:\n"
)

// finder finds domains by namespace.
type finder map[string]*v1beta1.ComputeDomain

func (f finder) ByUID(_ context.Context, namespace, _ string, uid types.UID) (*v1beta1.ComputeDomain, error) {
	if domain := f[namespace]; domain != nil && domain.UID == uid {
		return domain, nil
	}
	return nil, nil
}

// testNode is a kind on a node of files and fakes, served as draplugin serves it to a kubelet.
type testNode struct {
	*preparer
	plugin *draplugin.Plugin
	client *fake.Clientset
	events *record.FakeRecorder
	dir    string
}

func newTestNode(t *testing.T, f fabric, change ...func(*options.Node)) *testNode {
	t.Helper()
	// Sockets have short paths only.
	dir, err := os.MkdirTemp("", "cd")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	writeFile(t, filepath.Join(dir, "proc/devices"), procDevices)
	writeFile(t, filepath.Join(dir, "proc/driver/nvidia/capabilities/fabric-imex-mgmt"),
		"DeviceFileMinor: 4\nDeviceFileMode: 256\nDeviceFileModify: 1\n")
	for address, minor := range map[string]string{"0000:08:00.0": "0", "0000:09:00.0": "1"} {
		writeFile(t, filepath.Join(dir, "proc/driver/nvidia/gpus", address, "information"), "Device Minor: \t "+minor+"\n")
	}
	writeFile(t, filepath.Join(dir, "proc/sys/kernel/random/boot_id"), "first\n")
	// Where a driver container has it; the plugin sees it elsewhere than the node.
	for _, name := range []string{"usr/bin/nvidia-imex", "usr/bin/nvidia-imex-ctl", "usr/lib64/libnvidia-ml.so.1",
		"usr/lib64/libnvidia-imex.so.1"} {
		writeFile(t, filepath.Join(dir, "driver", name), "")
	}
	at := options.Node{
		DriverRoot: filepath.Join(dir, "driver") + "=/run/nvidia/driver", DevRoot: "/dev",
		NodeName: nodeName, CDIRoot: filepath.Join(dir, "cdi"), StateDir: filepath.Join(dir, "state"),
		ProcDevices: filepath.Join(dir, "proc/devices"), KubeletRoot: filepath.Join(dir, "kubelet"), CgroupRoot: filepath.Join(dir, "cgroup"),
	}
	for _, c := range change {
		c(&at)
	}
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, ResourceVersion: "1"}})
	capabilitytest.DryRuns(client, capabilitytest.All)
	domain := &v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: "d", UID: domainUID}}
	domain.Spec.Channel.AllocationMode, domain.Spec.NumNodes = v1beta1.AllocationModeAll, 2
	domain.Status.IMEX = v1beta1.IMEXDomain
	domain.Status.Nodes = []v1beta1.ComputeDomainNode{{Name: "other", CliqueID: cliqueID}, {Name: nodeName, CliqueID: cliqueID, Index: 3}}
	n := &testNode{client: client, events: record.NewFakeRecorder(100), dir: dir,
		preparer: newPlugin(at, system, client, finder{"user": domain})}
	n.fabric.Set(f)
	n.node.see(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: nodeName, ResourceVersion: "1"}})
	n.plugin, err = draplugin.Start(t.Context(), draplugin.Config{
		Driver: computedomain.Driver, Node: at, NodeUID: "uid", Client: client, Preparer: n.preparer,
		Metrics: metrics.New(computedomain.Driver), Recorder: n.events,
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.plugin.Stop)
	return n
}

func writeFile(t *testing.T, path, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

var (
	inFabric = fabric{known: true, state: nvml.Joined, clique: cliqueID}
	noFabric = fabric{known: true, state: nvml.NoFabric}
)

// daemonIs puts the domain's daemon pod on the node in the given state.
func (n *testNode) daemonIs(ready bool) {
	status := corev1.ConditionFalse
	if ready {
		status = corev1.ConditionTrue
	}
	n.daemons.pods.Set([]*corev1.Pod{{
		ObjectMeta: metav1.ObjectMeta{Name: "imex-daemon", Labels: map[string]string{v1beta1.LabelComputeDomain: string(domainUID)}},
		Status: corev1.PodStatus{
			Conditions:        []corev1.PodCondition{{Type: corev1.PodReady, Status: status}},
			ContainerStatuses: []corev1.ContainerStatus{{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}},
		},
	}})
}

func claimFor(namespace, device string, config any) *resourceapi.ResourceClaim {
	raw, _ := json.Marshal(config)
	if text, ok := config.(string); ok {
		raw = []byte(text)
	}
	claim := &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "claim", UID: types.UID("claim-" + device)},
		Status: resourceapi.ResourceClaimStatus{Allocation: &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
			Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: computedomain.Driver, Pool: computedomain.PoolName(nodeName),
				Device: device}},
		}}},
	}
	if config != nil {
		opaque := &resourceapi.OpaqueDeviceConfiguration{Driver: computedomain.Driver}
		opaque.Parameters.Raw = raw
		claim.Status.Allocation.Devices.Config = []resourceapi.DeviceAllocationConfiguration{{
			Source: resourceapi.AllocationConfigSourceClaim, DeviceConfiguration: resourceapi.DeviceConfiguration{Opaque: opaque},
		}}
	}
	return claim
}

func meta(kind string) metav1.TypeMeta {
	return metav1.TypeMeta{APIVersion: v1beta1.SchemeGroupVersion().String(), Kind: kind}
}

func channelClaim(namespace string, mode v1beta1.AllocationMode) *resourceapi.ResourceClaim {
	return claimFor(namespace, computedomain.ChannelDevice, v1beta1.ComputeDomainChannelConfig{
		TypeMeta: meta("ComputeDomainChannelConfig"), DomainID: string(domainUID), AllocationMode: mode,
	})
}

// twoDomainsClaim is a claim with a channel of each of two domains. The scheduler gives a shared channel any number of times.
func twoDomainsClaim(first, second string) *resourceapi.ResourceClaim {
	claim := &resourceapi.ResourceClaim{}
	for request, domain := range map[string]string{"first": first, "second": second} {
		one := claimFor("user", computedomain.ChannelDevice, v1beta1.ComputeDomainChannelConfig{
			TypeMeta: meta("ComputeDomainChannelConfig"), DomainID: domain,
		})
		devices := &one.Status.Allocation.Devices
		devices.Results[0].Request, devices.Results[0].ShareID = request, ptr.To(types.UID(request))
		devices.Config[0].Requests = []string{request}
		if claim.Status.Allocation != nil {
			all := &claim.Status.Allocation.Devices
			devices.Results, devices.Config = append(devices.Results, all.Results...), append(devices.Config, all.Config...)
		}
		claim = one
	}
	slices.SortFunc(claim.Status.Allocation.Devices.Results, func(a, b resourceapi.DeviceRequestAllocationResult) int {
		return strings.Compare(a.Request, b.Request)
	})
	return claim
}

func daemonClaim(namespace string) *resourceapi.ResourceClaim {
	claim := claimFor(namespace, computedomain.DaemonDevice, v1beta1.ComputeDomainDaemonConfig{
		TypeMeta: meta("ComputeDomainDaemonConfig"), DomainID: string(domainUID),
	})
	claim.Annotations = map[string]string{computedomain.AnnotationName: "d", computedomain.AnnotationNamespace: "user"}
	return claim
}

func (n *testNode) prepare(t *testing.T, claim *resourceapi.ResourceClaim) kubeletplugin.PrepareResult {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	results, err := n.plugin.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		t.Fatal(err)
	}
	return results[claim.UID]
}

func (n *testNode) unprepare(t *testing.T, claim *resourceapi.ResourceClaim) {
	t.Helper()
	results, err := n.plugin.UnprepareResourceClaims(t.Context(), []kubeletplugin.NamespacedObject{{UID: claim.UID}})
	if err := errors.Join(err, results[claim.UID]); err != nil {
		t.Fatal(err)
	}
}

// injected are the edits that the claim's only device has in its CDI spec; none where there is no spec.
func (n *testNode) injected(t *testing.T) specs.ContainerEdits {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(n.dir, "cdi/*.json"))
	if err != nil || len(files) > 1 {
		t.Fatalf("specs %v, %v", files, err)
	}
	if len(files) == 0 {
		return specs.ContainerEdits{}
	}
	data, err := os.ReadFile(files[0])
	if err != nil {
		t.Fatal(err)
	}
	var spec specs.Spec
	if err := json.Unmarshal(data, &spec); err != nil || len(spec.Devices) != 1 {
		t.Fatalf("spec with %d devices, %v", len(spec.Devices), err)
	}
	return spec.Devices[0].ContainerEdits
}

func (n *testNode) label(t *testing.T, name string) string {
	t.Helper()
	node, err := n.client.CoreV1().Nodes().Get(t.Context(), nodeName, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return node.Labels[name]
}

func deviceNode(path string, major, minor int64) *specs.DeviceNode {
	mode := os.FileMode(0o666)
	return &specs.DeviceNode{Path: path, Type: "c", Major: major, Minor: minor, FileMode: &mode, Permissions: "rw"}
}

func TestPreparerLabelsTheNodeAndWaitsForTheDaemon(t *testing.T) {
	n := newTestNode(t, inFabric)
	claim := channelClaim("user", v1beta1.AllocationModeSingle)
	done := make(chan kubeletplugin.PrepareResult, 1)
	go func() { done <- n.prepare(t, claim) }()
	_, ok := n.node.labels.Await(t.Context(), func(l nodeLabels) bool { return l.domain == domainUID })
	if !ok || n.label(t, v1beta1.LabelComputeDomain) != string(domainUID) {
		t.Fatal("the node is not labelled")
	}
	n.daemonIs(false)
	select {
	case result := <-done:
		t.Fatalf("prepared while the daemon is not ready: %+v", result)
	case <-time.After(20 * time.Millisecond): // it must not happen, so there is no event to wait for
	}
	n.daemonIs(true)
	if result := <-done; result.Err != nil {
		t.Fatal(result.Err)
	}
	want := specs.ContainerEdits{
		Env: []string{
			"COMPUTE_DOMAIN_UUID=" + string(domainUID), "COMPUTE_DOMAIN_NAME=d", "COMPUTE_DOMAIN_NAMESPACE=user", "COMPUTE_DOMAIN_NODES=2",
			"COMPUTE_DOMAIN_CLIQUE_ID=" + cliqueID, "COMPUTE_DOMAIN_CHANNEL=0", "COMPUTE_DOMAIN_NODE_INDEX=3",
		},
		DeviceNodes: []*specs.DeviceNode{deviceNode("/dev/nvidia-caps-imex-channels/channel0", 234, 0)},
	}
	if diff := cmp.Diff(want, n.injected(t)); diff != "" {
		t.Errorf("injected (-want +got)\n%s", diff)
	}
	n.unprepare(t, claim)
	if label := n.label(t, v1beta1.LabelComputeDomain); label != "" || len(n.injected(t).DeviceNodes) != 0 {
		t.Errorf("after the last channel: label %q, injected %+v", label, n.injected(t))
	}
}

func TestModeAllInjectsEveryChannel(t *testing.T) {
	n := newTestNode(t, inFabric)
	n.daemonIs(true)
	if result := n.prepare(t, channelClaim("user", v1beta1.AllocationModeAll)); result.Err != nil {
		t.Fatal(result.Err)
	}
	nodes := n.injected(t).DeviceNodes
	if len(nodes) != 2048 || !cmp.Equal(nodes[2047], deviceNode("/dev/nvidia-caps-imex-channels/channel2047", 234, 2047)) {
		t.Errorf("%d channels, the last %+v", len(nodes), nodes[len(nodes)-1])
	}
}

func TestPreparerGivesChannelsContainerItsClique(t *testing.T) {
	n := newTestNode(t, inFabric, func(o *options.Node) { o.DeviceMetadata = true })
	n.daemonIs(true)
	if result := n.prepare(t, channelClaim("user", v1beta1.AllocationModeSingle)); result.Err != nil {
		t.Fatal(result.Err)
	}
	mounts := n.injected(t).Mounts
	if len(mounts) != 1 {
		t.Fatalf("mounts %+v", mounts)
	}
	text, err := os.ReadFile(mounts[0].HostPath)
	if err != nil || !strings.Contains(string(text), `"cliqueID":{"string":"`+cliqueID+`"}`) {
		t.Errorf("%s, %v", text, err)
	}
}

func TestPreparerDoesNotGiveAChannelWithoutFabric(t *testing.T) {
	n := newTestNode(t, noFabric)
	n.daemonIs(true)
	if result := n.prepare(t, channelClaim("user", v1beta1.AllocationModeSingle)); result.Err != nil ||
		len(result.Devices[0].CDIDeviceIDs) != 0 {
		t.Errorf("result %+v", result)
	}
}

func TestWrongClaimsAreRefusedWithTheReason(t *testing.T) {
	foreign := strings.Replace(string(domainUID), "0f", "1f", 1)
	unannotated := daemonClaim(system)
	unannotated.Annotations = nil
	for name, c := range map[string]struct {
		claim  *resourceapi.ResourceClaim
		fabric fabric
		says   []string
	}{
		"a domain of another namespace": {channelClaim("stranger", v1beta1.AllocationModeSingle), inFabric,
			[]string{"namespace stranger has no ComputeDomain", "of its own namespace"}},
		"a domain that does not exist": {claimFor("user", computedomain.ChannelDevice,
			v1beta1.ComputeDomainChannelConfig{TypeMeta: meta("ComputeDomainChannelConfig"), DomainID: foreign}), inFabric,
			[]string{foreign, "namespace user"}},
		"no configuration": {claimFor("user", computedomain.ChannelDevice, nil), inFabric,
			[]string{"ResourceClaimTemplate", "ComputeDomainChannelConfig"}},
		"a daemon's configuration for a channel": {claimFor("user", computedomain.ChannelDevice,
			v1beta1.ComputeDomainDaemonConfig{TypeMeta: meta("ComputeDomainDaemonConfig"), DomainID: foreign}), inFabric,
			[]string{"takes a ComputeDomainChannelConfig only"}},
		"a GPU's configuration for a daemon": {claimFor(system, computedomain.DaemonDevice, v1beta1.GpuConfig{TypeMeta: meta("GpuConfig")}),
			inFabric,
			[]string{"takes a ComputeDomainDaemonConfig only"}},
		"an empty domain": {claimFor("user", computedomain.ChannelDevice,
			v1beta1.ComputeDomainChannelConfig{TypeMeta: meta("ComputeDomainChannelConfig")}), inFabric,
			[]string{"domainID", "status.allocation.devices.config[0]"}},
		"two domains": {twoDomainsClaim(string(domainUID), foreign), inFabric,
			[]string{"request second: domainID " + foreign, string(domainUID), "one ComputeDomain"}},
		"no JSON":                          {claimFor("user", computedomain.ChannelDevice, "nonsense"), inFabric, []string{"not a JSON object"}},
		"a daemon in a tenant's namespace": {daemonClaim("user"), inFabric, []string{"namespace user", system}},
		"a daemon without its domain":      {unannotated, inFabric, []string{computedomain.AnnotationName}},
		"GPUs that disagree": {channelClaim("user", v1beta1.AllocationModeSingle),
			fabric{known: true, state: nvml.NoFabric, problem: "GPU-0 in a; GPU-1 in b", problemKind: problemDisagree},
			[]string{"node-a", "GPU-0 in a; GPU-1 in b"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t, c.fabric)
			n.daemonIs(true)
			result := n.prepare(t, c.claim)
			for _, want := range c.says {
				if result.Err == nil || !strings.Contains(result.Err.Error(), want) {
					t.Errorf("error %v does not say %q", result.Err, want)
				}
			}
			if label := n.label(t, v1beta1.LabelComputeDomain); label != "" || len(n.plugin.Records()) != 0 {
				t.Errorf("left: label %q, records %v", label, n.plugin.Records())
			}
			select {
			case <-n.events.Events:
			default:
				t.Error("no Event")
			}
		})
	}
}

func TestPreparerRejectsAModeThatTheDomainForbids(t *testing.T) {
	n := newTestNode(t, inFabric)
	n.daemonIs(true)
	n.domains.(finder)["user"].Spec.Channel.AllocationMode = v1beta1.AllocationModeSingle
	if result := n.prepare(t, channelClaim("user", v1beta1.AllocationModeAll)); result.Err == nil ||
		!strings.Contains(result.Err.Error(), "allocationMode") {
		t.Errorf("result %+v", result)
	}
}

func TestPreparerReportsTheCauseOfAWait(t *testing.T) {
	n := newTestNode(t, inFabric)
	n.daemonIs(false)
	claim := channelClaim("user", v1beta1.AllocationModeSingle)
	for patience := 500 * time.Millisecond; ; patience *= 4 { // a busy machine may not get as far as the wait in a short one
		ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second+patience) // three seconds are kept for the answer
		results, err := n.plugin.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim})
		cancel()
		if err != nil {
			t.Fatal(err)
		}
		err = results[claim.UID].Err
		if err != nil && strings.Contains(err.Error(), "nvidia-imex is not READY") {
			break
		}
		if err == nil || patience > time.Minute {
			t.Fatalf("error %v", err)
		}
	}
	// The kubelet will prepare again: the node stays in the domain, so that the daemon can become ready in between.
	if n.label(t, v1beta1.LabelComputeDomain) != string(domainUID) || n.plugin.Records()[0].Phase != claimstate.Preparing {
		t.Errorf("label %q, records %+v", n.label(t, v1beta1.LabelComputeDomain), n.plugin.Records())
	}
	n.daemonIs(true)
	if result := n.prepare(t, claim); result.Err != nil {
		t.Error(result.Err)
	}
}

func TestPreparerKeepsAnotherDomainsLabel(t *testing.T) {
	n := newTestNode(t, inFabric)
	n.daemonIs(true)
	claim := channelClaim("user", v1beta1.AllocationModeSingle)
	if result := n.prepare(t, claim); result.Err != nil {
		t.Fatal(result.Err)
	}
	if err := n.node.patch(t.Context(), map[string]any{v1beta1.LabelComputeDomain: "another"}); err != nil {
		t.Fatal(err)
	}
	n.unprepare(t, claim)
	if label := n.label(t, v1beta1.LabelComputeDomain); label != "another" {
		t.Errorf("label %q", label)
	}
}

func TestPreparerTaintsTheChannelOfABrokenNode(t *testing.T) {
	for name, c := range map[string]struct {
		fabric fabric
		taint  string
	}{
		"in its fabric":      {inFabric, ""},
		"without fabric":     {noFabric, ""},
		"joining":            {fabric{known: true, state: nvml.Joining}, problemJoining},
		"GPUs that disagree": {fabric{known: true, state: nvml.NoFabric, problem: "x", problemKind: problemDisagree}, problemDisagree},
	} {
		t.Run(name, func(t *testing.T) {
			devices := devicesOf(c.fabric, false, "", nil)
			taint := ""
			if len(devices[0].Taints) > 0 {
				taint = devices[0].Taints[0].Value
			}
			if devices[0].Name != "channel-0" || devices[1].Name != "daemon-0" || taint != c.taint || len(devices[1].Taints) != 0 {
				t.Errorf("devices %+v", devices)
			}
		})
	}
}

func TestPreparerUpdatesTheCliqueLabel(t *testing.T) {
	for name, c := range map[string]struct {
		fabric  fabric
		want    string
		decided bool
	}{
		"unknown yet":        {fabric{}, "", false},
		"in its fabric":      {inFabric, cliqueID, true},
		"without fabric":     {noFabric, "", true},
		"joining":            {fabric{known: true, state: nvml.Joining}, "", false},
		"GPUs that disagree": {fabric{known: true, problem: "x", problemKind: problemDisagree}, "", true},
		"a lost GPU":         {fabric{known: true, problem: "x", problemKind: problemGPU}, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			if want, decided := cliqueLabel(c.fabric); decided != c.decided || decided && want != c.want {
				t.Errorf("got %q, %v", want, decided)
			}
		})
	}
	n := newTestNode(t, inFabric)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); n.node.labelClique(ctx, &n.fabric, n.sharing, &n.hostIMEX.state) }()
	for _, step := range []fabric{inFabric, noFabric, inFabric} {
		n.fabric.Set(step)
		if _, ok := n.node.labels.Await(t.Context(), func(l nodeLabels) bool { return l.clique == step.clique }); !ok {
			t.Fatalf("label for %+v", step)
		}
	}
	cancel()
	<-done
}
