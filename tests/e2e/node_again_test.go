package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/tests/docker"
)

// settled is how long a node's ResourceSlices must stay as they are. The garbage collector deletes those of an earlier Node, and the
// library of DRA drivers makes them again after 30 s.
const settled = 70 * time.Second

// nodeSlices are the ResourceSlices of a node.
type nodeSlices struct {
	devices []string // driver and name of each
	uids    []string
	owners  []string // the UIDs of the Nodes that own them, each once
}

func (e *environment) slicesOf(ctx context.Context, node string) (nodeSlices, error) {
	out, err := e.Kubectl(ctx, nil, "get", "resourceslices", "--field-selector=spec.nodeName="+node, "--output", "json")
	if err != nil {
		return nodeSlices{}, err
	}
	var list struct {
		Items []struct {
			Metadata struct {
				UID             string
				OwnerReferences []struct{ UID string }
			}
			Spec struct {
				Driver  string
				Devices []struct{ Name string }
			}
		}
	}
	if err := json.Unmarshal([]byte(out), &list); err != nil {
		return nodeSlices{}, err
	}
	var found nodeSlices
	for _, slice := range list.Items {
		found.uids = append(found.uids, slice.Metadata.UID)
		for _, owner := range slice.Metadata.OwnerReferences {
			found.owners = append(found.owners, owner.UID)
		}
		for _, device := range slice.Spec.Devices {
			found.devices = append(found.devices, slice.Spec.Driver+" "+device.Name)
		}
	}
	slices.Sort(found.uids)
	slices.Sort(found.devices)
	slices.Sort(found.owners)
	found.owners = slices.Compact(found.owners)
	return found, nil
}

// nodeUID is the UID of a Node.
func (e *environment) nodeUID(t *testing.T, node string) string {
	t.Helper()
	return e.kubectl(t, "get", "node", node, "--output", "jsonpath={.metadata.uid}")
}

// keepHardware has a node's kubelet register the Node with the labels of its fake hardware, as a cloud's kubelet registers those of its
// group of nodes. Without them the agent would remove the hardware.
func (e *environment) keepHardware(t *testing.T, node string) {
	t.Helper()
	var object struct {
		Metadata struct{ Labels map[string]string }
	}
	e.get(t, &object, "node", node)
	var labels []string
	for key, value := range object.Metadata.Labels {
		if strings.HasPrefix(key, "fakefabric.gpufabric.io/") {
			labels = append(labels, key+"="+value)
		}
	}
	const flags = "/var/lib/kubelet/kubeadm-flags.env"
	script := func(ctx context.Context, text string) {
		t.Helper()
		_, err := docker.Script(ctx, node, text)
		must(t, err)
	}
	t.Cleanup(func() {
		script(context.WithoutCancel(t.Context()), "test ! -e "+flags+".before || mv "+flags+".before "+flags)
	})
	script(t.Context(), fmt.Sprintf(`cp %[1]s %[1]s.before
		sed -i 's|^KUBELET_KUBEADM_ARGS="|&--node-labels=%[2]s |' %[1]s
		grep -q 'node-labels=%[2]s' %[1]s`, flags, strings.Join(labels, ",")))
}

// comesBack waits until a Node that was deleted is registered again, is Ready, and offers devices. Its ResourceSlices must stay after that.
func (e *environment) comesBack(t *testing.T, node, before string, devices []string) {
	t.Helper()
	e.kubectl(t, "wait", "node/"+node, "--for=create", inTime)
	e.kubectl(t, "wait", "node/"+node, "--for=condition=Ready", inTime)
	uid := e.nodeUID(t, node)
	if uid == before {
		t.Fatalf("the Node has the UID %s, as before: it was not deleted", uid)
	}
	registered := time.Now()
	e.eventually(t, "the ResourceSlices of "+node+" to be back", func(ctx context.Context) (bool, string, error) {
		found, err := e.slicesOf(ctx, node)
		good := slices.Equal(found.devices, devices) && slices.Equal(found.owners, []string{uid})
		return good, fmt.Sprintf("%+v, want devices %v", found, devices), err
	})
	measured(t, "a Node registered again to its ResourceSlices being back", time.Since(registered))
}

// staysBack waits until the node's ResourceSlices were the same for a time, in which look is called again and again.
func (e *environment) staysBack(t *testing.T, node string, devices []string, look func()) {
	t.Helper()
	var uids []string
	since, uid := time.Now(), e.nodeUID(t, node)
	e.eventually(t, "the ResourceSlices of "+node+" to stay", func(ctx context.Context) (bool, string, error) {
		look()
		found, err := e.slicesOf(ctx, node)
		same := slices.Equal(found.devices, devices) && slices.Equal(found.owners, []string{uid}) && slices.Equal(found.uids, uids)
		if err == nil && !same {
			since, uids = time.Now(), found.uids
		}
		return err == nil && same && time.Since(since) > settled, fmt.Sprintf("%+v, the same for %s", found, time.Since(since)), err
	})
}

// testNodeRegisteredAgain deletes a Node under running pods, and starts its kubelet again, which registers it under its name. The pods keep
// their devices, which other pods get when they end.
func testNodeRegisteredAgain(t *testing.T, e *environment) {
	node := e.Workers()[0]
	e.domains(t, "again-a", "again-b")
	e.gpuUUID(t, node, 1)
	e.apply(t, deafClaim("again-whole", wholeGPU(1)))
	all := []succession{{"a whole GPU", "again-whole", "again-whole"}, {"an IMEX channel", "again-a", "again-b"}}
	first := func(i int) string { return fmt.Sprintf("again-%d", i) }
	next := func(i int) string { return fmt.Sprintf("after-again-%d", i) }
	for i, s := range all {
		e.apply(t, politePod(first(i), node, s.first))
	}
	const state = "jsonpath={.metadata.uid} {.status.phase} {.status.containerStatuses[0].restartCount}"
	saw, was := make([]string, len(all)), make([]string, len(all))
	for i := range all {
		e.ready(t, first(i))
		saw[i], was[i] = e.devicesOf(t, first(i)), e.kubectl(t, "get", "pod", first(i), "--output", state)
	}
	e.kubectl(t, "wait", "computedomain/again-a", "--for=jsonpath={.status.status}=Ready", inTime)
	for i, s := range all {
		e.apply(t, politePod(next(i), node, s.next))
	}
	offered, err := e.slicesOf(t.Context(), node)
	must(t, err)
	if len(offered.devices) == 0 {
		t.Fatalf("%s offers no device", node)
	}

	before := e.nodeUID(t, node)
	e.keepHardware(t, node)
	e.kubectl(t, "delete", "node", node, inTime)
	_, err = docker.Script(t.Context(), node, "systemctl restart kubelet")
	must(t, err)
	e.comesBack(t, node, before, offered.devices)
	e.staysBack(t, node, offered.devices, func() {
		for i, s := range all {
			if now := e.kubectl(t, "get", "pod", first(i), "--output", state); now != was[i] {
				t.Fatalf("%s: the pod is %q, want %q, as before its Node was deleted", s.device, now, was[i])
			}
			if phase := e.kubectl(t, "get", "pod", next(i), "--output", "jsonpath={.status.phase}"); phase != "Pending" {
				t.Fatalf("%s: the next pod is %s while the first one has it", s.device, phase)
			}
		}
	})
	if got := e.kubectl(t, "get", "node", node, "--output", `jsonpath={.metadata.labels.nvidia\.com/gpu\.clique}`); got != clique {
		t.Errorf("label nvidia.com/gpu.clique of the new Node is %q, want %q", got, clique)
	}
	e.kubectl(t, "wait", "computedomain/again-a", "--for=jsonpath={.status.status}=Ready", inTime)
	for i, s := range all {
		if got := e.devicesOf(t, first(i)); got != saw[i] {
			t.Errorf("%s: the pod sees %q after its Node was registered again, want %q", s.device, got, saw[i])
		}
		e.kubectl(t, "delete", "pod", first(i), inTime)
		ended := time.Now()
		e.ready(t, next(i))
		measured(t, "Node registered again, "+s.device+": first pod gone to the next pod ready", time.Since(ended))
		if got := e.devicesOf(t, next(i)); got != saw[i] {
			t.Errorf("%s: the next pod sees %q, want %q", s.device, got, saw[i])
		}
		e.kubectl(t, "delete", "pod", next(i), inTime)
	}
}

// testNodeAwayForLong has a Node away until the API has neither its pods nor their claims, while their containers run on. The node keeps
// their devices. The kubelet ends such containers when it is back, and then other pods get the devices.
func testNodeAwayForLong(t *testing.T, e *environment) {
	node := e.Workers()[0]
	e.domains(t, "away-a", "away-b")
	e.gpuUUID(t, node, 1)
	e.apply(t, deafClaim("away-whole", wholeGPU(1)))
	offered, err := e.slicesOf(t.Context(), node)
	must(t, err)
	all := []succession{{"a whole GPU", "away-whole", "away-whole"}, {"an IMEX channel", "away-a", "away-b"}}
	first := func(i int) string { return fmt.Sprintf("away-%d", i) }
	next := func(i int) string { return fmt.Sprintf("after-away-%d", i) }
	for i, s := range all {
		e.apply(t, deafPod(first(i), node, s.first))
	}
	saw, uids, claims := make([]string, len(all)), make([]string, len(all)), make([]string, len(all))
	for i := range all {
		e.ready(t, first(i))
		saw[i] = e.devicesOf(t, first(i))
		uids[i] = e.kubectl(t, "get", "pod", first(i), "--output", "jsonpath={.metadata.uid}")
		claims[i] = e.claimUIDs(t, first(i))[0]
	}
	script := func(ctx context.Context, text string) string {
		t.Helper()
		out, err := docker.Script(ctx, node, text)
		must(t, err)
		return strings.TrimSpace(out)
	}

	before := e.nodeUID(t, node)
	e.keepHardware(t, node)
	t.Cleanup(func() { script(context.WithoutCancel(t.Context()), "systemctl start kubelet") })
	script(t.Context(), "systemctl stop kubelet")
	e.kubectl(t, "delete", "node", node, inTime)
	// After 40 s the controller manager deletes pods that are bound to no Node.
	e.vanish(t, "the pods of a deleted Node and their claims", func(ctx context.Context) ([]string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "pods,resourceclaims", "--output", "name")
		return strings.Fields(out), err
	})
	// Longer than the look at claims that are gone.
	for deadline := time.Now().Add(20 * time.Second); time.Now().Before(deadline); time.Sleep(time.Second) {
		for i, s := range all {
			records := script(t.Context(), "ls /var/lib/gpufabric/*/claims/"+claims[i]+".claim 2>/dev/null || true")
			if script(t.Context(), podProcesses(uids[i])) == "" {
				t.Fatalf("%s: the container ended without a kubelet, so the test shows nothing", s.device)
			}
			if records == "" {
				t.Fatalf("%s: the node released it while the container has it", s.device)
			}
		}
	}

	script(t.Context(), "systemctl start kubelet")
	for i, s := range all {
		e.apply(t, politePod(next(i), node, s.next))
	}
	e.comesBack(t, node, before, offered.devices)
	for i, s := range all {
		e.ready(t, next(i))
		if processes := script(t.Context(), podProcesses(uids[i])); processes != "" {
			t.Errorf("%s: the next pod runs while the first one has the processes %q", s.device, strings.Fields(processes))
		}
		if got := e.devicesOf(t, next(i)); got != saw[i] {
			t.Errorf("%s: the next pod sees %q, want %q", s.device, got, saw[i])
		}
		e.kubectl(t, "delete", "pod", next(i), inTime)
	}
}
