package dra

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/infiniband"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/draplugin"
	"gpufabric.io/drivers/rdma/exclusive"
	"gpufabric.io/drivers/rdma/inventory"
)

// networks plays what moves devices.
type networks struct {
	unready error
	closed  bool
	taken   []string
}

func (n *networks) Ready() error { return n.unready }

func (n *networks) Closed() bool { return n.closed }

func (n *networks) TakeFrom(_ context.Context, claim, podUID string) error {
	n.taken = append(n.taken, claim+" "+podUID)
	return nil
}

// example is the opaque configuration in the example of such a claim.
func example(t *testing.T) json.RawMessage {
	t.Helper()
	content, err := os.ReadFile("../../../examples/manifests/rdma-exclusive.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text, _, _ := strings.Cut(string(content), "\n---\n")
	var template resourceapi.ResourceClaimTemplate
	if err := yaml.UnmarshalStrict([]byte(text), &template); err != nil {
		t.Fatal(err)
	}
	return template.Spec.Spec.Devices.Config[0].Opaque.Parameters.Raw
}

// exclusiveClaim is a claim for one device in the pod's network.
func exclusiveClaim(parameters json.RawMessage, share bool, pods ...string) *draplugin.Claim {
	claim := &draplugin.Claim{ResourceClaim: &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "nic",
		UID: "1-2"}}}
	for _, pod := range pods {
		claim.Status.ReservedFor = append(claim.Status.ReservedFor, resourceapi.ResourceClaimConsumerReference{Resource: "pods", Name: pod,
			UID: types.UID("uid-" + pod)})
	}
	device := draplugin.AllocatedDevice{
		DeviceRequestAllocationResult: resourceapi.DeviceRequestAllocationResult{Device: "hca", Pool: "node-a-rdma", Request: "nic"},
		Configs:                       []draplugin.OpaqueConfig{{Path: "config[0]", Raw: parameters}},
	}
	if share {
		id := types.UID("share")
		device.ShareID = &id
	}
	claim.Devices = []draplugin.AllocatedDevice{device}
	return claim
}

func TestNetworkTakesOnlyWholeDevices(t *testing.T) {
	parameters := example(t)
	hca := &inventory.HCA{Device: infiniband.Device{
		Name: "mlx5_0", Verbs: infiniband.CharDevice{Name: "uverbs0"},
		Ports: []infiniband.Port{{Number: 1, Nets: []infiniband.Net{{Name: "ens1"}}}, {Number: 2, Nets: []infiniband.Net{{Name: "ens2"}}}},
	}}
	for _, test := range []struct {
		name    string
		claim   *draplugin.Claim
		ports   []int
		bond    string
		unready error
		err     string
	}{
		{name: "a whole HCA for one pod", claim: exclusiveClaim(parameters, false, "a"), ports: []int{1, 2}},
		{name: "a share of an HCA", claim: exclusiveClaim(parameters, true, "a"), ports: []int{1, 2}, err: "hca is shared"},
		{name: "one of two ports", claim: exclusiveClaim(parameters, false, "a"), ports: []int{1}, err: "without its port 2"},
		{name: "two pods", claim: exclusiveClaim(parameters, false, "a", "b"), ports: []int{1, 2}, err: "2 pods share the claim"},
		{name: "an interface of a bond", claim: exclusiveClaim(parameters, false, "a"), ports: []int{1, 2}, bond: "bond0",
			err: "ens1 is in bond0"},
		{name: "no runtime", claim: exclusiveClaim(parameters, false, "a"), ports: []int{1, 2}, unready: errors.New("start it with --nri-socket"),
			err: "--nri-socket"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dev := t.TempDir()
			if err := os.MkdirAll(filepath.Join(dev, "infiniband"), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dev, "infiniband/uverbs0"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			pods := &networks{unready: test.unready, closed: true}
			hca.Ports[0].Nets[0].Bond = test.bond
			kind := NewKind(inventory.DeviceNodes{Dev: driver.Here(dev)}, pods)
			kind.Set([]Port{{Name: "hca", HCA: hca, Ports: test.ports}}, inventory.GPUDirectNone)
			prepared, err := kind.Prepare(t.Context(), test.claim, nil)
			if test.err != "" {
				if err == nil || !strings.Contains(err.Error(), test.err) {
					t.Errorf("got %v, want an error with %q", err, test.err)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			raw, err := json.Marshal(prepared.Data)
			if err != nil {
				t.Fatal(err)
			}
			record := claimstate.Record{UID: "1-2", Namespace: "default", Name: "nic", Data: raw}
			want := exclusive.Grant{Claim: "default/nic", PodUID: "uid-a",
				Devices: []exclusive.Device{{RDMA: "mlx5_0", Nets: []string{"ens1", "ens2"}}}}
			got, ok := GrantOf(record)
			if diff := cmp.Diff(want, got); !ok || diff != "" {
				t.Error(ok, diff)
			}
			if name := prepared.Attributes(0)[AttrRDMADevice].StringValue; name == nil || *name != "mlx5_0" {
				t.Errorf("metadata names the RDMA device %v", name)
			}
			if len(prepared.Warnings) > 0 {
				t.Errorf("warnings %v", prepared.Warnings)
			}
			if !slices.Contains(prepared.Edits[0].Env, "GPUFABRIC_RDMA_EXCLUSIVE_1_2=default/nic") {
				t.Errorf("environment %v", prepared.Edits[0].Env)
			}
			if err := kind.Unprepare(t.Context(), record); err != nil || !slices.Equal(pods.taken, []string{"default/nic uid-a"}) {
				t.Errorf("taken back %v, %v", pods.taken, err)
			}
		})
	}
}

// oneHCA is an HCA, and the directory with its device node.
func oneHCA(t *testing.T) (hca *inventory.HCA, dev string) {
	t.Helper()
	dev = t.TempDir()
	if err := os.MkdirAll(filepath.Join(dev, "infiniband"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dev, "infiniband/uverbs0"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return &inventory.HCA{Device: infiniband.Device{Name: "mlx5_0", Verbs: infiniband.CharDevice{Name: "uverbs0"},
		Ports: []infiniband.Port{{Number: 1}}}}, dev
}

func TestPrepareWarnsOfAnExclusiveNetworkForADeviceThatIsOnlyObserved(t *testing.T) {
	hca, dev := oneHCA(t)
	kind := NewKind(inventory.DeviceNodes{Dev: driver.Here(dev)}, &networks{})
	kind.Set([]Port{{Name: "hca", HCA: hca, Ports: []int{1}}}, inventory.GPUDirectNone)
	claim := exclusiveClaim(example(t), false, "a")
	claim.Devices[0].AdminAccess = ptr.To(true)
	prepared, err := kind.Prepare(t.Context(), claim, nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(prepared.Warnings) != 1 || prepared.Warnings[0].Reason != "ConfigWithoutEffect" ||
		!strings.Contains(prepared.Warnings[0].Message, "on hca of request nic") || prepared.Data != nil {
		t.Errorf("warnings %v, data %v", prepared.Warnings, prepared.Data)
	}
}

func TestNetworkWarnsOfAShareInExclusiveMode(t *testing.T) {
	hca, dev := oneHCA(t)
	for _, closed := range []bool{false, true} {
		kind := NewKind(inventory.DeviceNodes{Dev: driver.Here(dev)}, &networks{closed: closed})
		kind.Set([]Port{{Name: "hca", HCA: hca, Ports: []int{1}}}, inventory.GPUDirectNone)
		claim := exclusiveClaim(nil, true, "a")
		claim.Devices[0].Configs = nil
		prepared, err := kind.Prepare(t.Context(), claim, nil)
		if err != nil {
			t.Fatal(err)
		}
		if got := len(prepared.Warnings) == 1 && strings.Contains(prepared.Warnings[0].Message, "are in exclusive mode"); got != closed {
			t.Errorf("exclusive mode %v: warnings %v", closed, prepared.Warnings)
		}
	}
}
