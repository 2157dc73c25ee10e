package plugin

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/computedomain/hostimex"
	"gpufabric.io/drivers/hardware/nvml"
)

// ownService is a node's own nvidia-imex.
type ownService struct {
	mu     sync.Mutex
	state  hostimex.Finding
	listed func(others []hostimex.Peer) (hostimex.Finding, error)
	// again is called when it is looked at for the second time.
	again func()
	looks int
}

func (s *ownService) Look(context.Context) hostimex.Finding {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.looks++; s.looks == 2 && s.again != nil {
		s.again()
	}
	return s.state
}

func (s *ownService) Peers(_ context.Context, _ hostimex.Peer, others []hostimex.Peer) (hostimex.Finding, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.listed(others)
}

func (s *ownService) is(reason string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = hostimex.Finding{Reason: reason, Message: "message of " + reason}
}

// newHostNode is a node whose own service serves the domain by channel 3.
func newHostNode(t *testing.T) (*testNode, *ownService) {
	t.Helper()
	n := newTestNode(t, inFabric)
	service := &ownService{listed: func([]hostimex.Peer) (hostimex.Finding, error) { return hostimex.Finding{}, nil }}
	n.mode, n.hostIMEX.service, n.hostIMEX.runs = v1beta1.IMEXHost, service, func() bool { return true }
	n.clique.object.Set(&v1beta1.ComputeDomain{
		ObjectMeta: metav1.ObjectMeta{UID: "table", Labels: map[string]string{v1beta1.LabelClique: cliqueID}},
		Status: v1beta1.ComputeDomainStatus{IMEX: v1beta1.IMEXHost,
			Channels: []v1beta1.ComputeDomainChannel{{Number: 3, DomainID: string(domainUID)}}},
	})
	n.domains.(finder)["user"].Status.IMEX = v1beta1.IMEXHost
	return n, service
}

// prepareBriefly prepares a claim, and gives up when the service is looked at for the second time: the state that it waits for does not
// come.
func (n *testNode) prepareBriefly(t *testing.T, service *ownService) error {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	service.again = cancel
	claim := channelClaim("user", v1beta1.AllocationModeSingle)
	results, err := n.plugin.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		t.Fatal(err)
	}
	return results[claim.UID].Err
}

func TestHostServiceDelaysAClaimWithItsState(t *testing.T) {
	n, service := newHostNode(t)
	service.is(hostimex.NotRunning)
	if err := n.prepareBriefly(t, service); err == nil || !strings.Contains(err.Error(), "message of "+hostimex.NotRunning) {
		t.Errorf("prepared while the service does not run: %v", err)
	}
	service.is("")
	if result := n.prepare(t, channelClaim("user", v1beta1.AllocationModeSingle)); result.Err != nil {
		t.Fatal(result.Err)
	}
	want := specs.ContainerEdits{
		Env: []string{ // no index: no daemon of the controller's waited for one
			"COMPUTE_DOMAIN_UUID=" + string(domainUID), "COMPUTE_DOMAIN_NAME=d", "COMPUTE_DOMAIN_NAMESPACE=user", "COMPUTE_DOMAIN_NODES=2",
			"COMPUTE_DOMAIN_CLIQUE_ID=" + cliqueID, "COMPUTE_DOMAIN_CHANNEL=3",
		},
		DeviceNodes: []*specs.DeviceNode{deviceNode("/dev/nvidia-caps-imex-channels/channel3", 234, 3)},
	}
	if diff := cmp.Diff(want, n.injected(t)); diff != "" {
		t.Errorf("injected (-want +got)\n%s", diff)
	}
}

func TestHostServiceDelaysAClaimForMissingNodes(t *testing.T) {
	n, service := newHostNode(t)
	other := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-b", Labels: map[string]string{
		v1beta1.LabelClique: cliqueID, computedomain.MemberLabel(domainUID): "",
	}}, Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "10.0.0.2"}}}}
	if _, err := n.client.CoreV1().Nodes().Create(t.Context(), other, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	service.listed = func(others []hostimex.Peer) (hostimex.Finding, error) {
		if len(others) != 1 || others[0].Name != "node-b" || !slices.Equal(others[0].Addresses, []string{"10.0.0.2"}) {
			t.Errorf("asked for %+v", others)
		}
		return hostimex.Finding{Reason: hostimex.NodesMissing, Message: "it lists not node-b"}, nil
	}
	if err := n.prepareBriefly(t, service); err == nil || !strings.Contains(err.Error(), "it lists not node-b") {
		t.Errorf("prepared beside a node that the service refuses: %v", err)
	}
	service.mu.Lock()
	service.listed = func([]hostimex.Peer) (hostimex.Finding, error) { return hostimex.Finding{}, errors.New("-N hangs") }
	service.mu.Unlock()
	if result := n.prepare(t, channelClaim("user", v1beta1.AllocationModeSingle)); result.Err != nil {
		t.Errorf("a list that is not known keeps a claim waiting: %v", result.Err)
	}
}

func TestHostServiceKeepsOurDaemonAway(t *testing.T) {
	n, _ := newHostNode(t)
	if err := n.prepare(t, daemonClaim(system)).Err; err == nil || !strings.Contains(err.Error(), "one IMEX session") {
		t.Errorf("a daemon's claim is prepared beside the node's own: %v", err)
	}
	n.domains.(finder)["user"].Status.IMEX = v1beta1.IMEXDomain
	if err := n.prepare(t, channelClaim("user", v1beta1.AllocationModeSingle)).Err; err == nil ||
		!strings.Contains(err.Error(), "one IMEX session") {
		t.Errorf("a domain with daemons of its own goes on beside the node's own: %v", err)
	}
}

func TestHostServiceDomainIsRefusedInAnotherMode(t *testing.T) {
	n, _ := newHostNode(t)
	n.hostIMEX.service, n.hostIMEX.runs = nil, nil
	if err := n.prepare(t, channelClaim("user", v1beta1.AllocationModeSingle)).Err; err == nil ||
		!strings.Contains(err.Error(), "computeDomains.imex") {
		t.Errorf("%v", err)
	}
}

func TestHostServiceReportsWhyItCannotServe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		service := &ownService{}
		k := &preparer{hostIMEX: hostIMEX{service: service}}
		k.fabric.Set(inFabric)
		var reported []string
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		service.is(hostimex.NotInstalled)
		go func() {
			defer close(ended)
			k.followHost(ctx, func(finding hostimex.Finding) { reported = append(reported, finding.Reason) })
		}()
		defer func() { cancel(); <-ended }()
		after := func(pause time.Duration, label, taint string) {
			t.Helper()
			time.Sleep(pause)
			synctest.Wait()
			if got := k.hostIMEX.state.Now(); got != (hostState{known: true, label: label}) || k.unready.Now() != taint {
				t.Errorf("label %+v, taint %q, want %q and %q", got, k.unready.Now(), label, taint)
			}
		}
		after(0, hostimex.NotInstalled, hostimex.NotInstalled)
		service.is(hostimex.NotRunning)
		after(2*hostWaitingInterval, hostimex.NotRunning, hostimex.NotRunning)
		service.is("")
		after(2*hostWaitingInterval, computedomain.HostIMEXReady, "")
		service.is(hostimex.NotAnswering) // once
		time.Sleep(hostSteadyInterval)
		service.is("")
		after(2*hostSteadyInterval, computedomain.HostIMEXReady, "")
		service.is(hostimex.NotReady)
		after(hostSteadyInterval+2*unreadyAfter, hostimex.NotReady, hostimex.NotReady)
		k.fabric.Set(fabric{known: true, state: nvml.NoFabric})
		after(0, "", "")
		want := []string{hostimex.NotInstalled, hostimex.NotRunning, "", hostimex.NotReady}
		if !slices.Equal(reported, want) {
			t.Errorf("told %q, want %q", reported, want)
		}
	})
}

func TestNodeLabelsFollowModeAndService(t *testing.T) {
	labels := nodeLabels{known: true, clique: cliqueID, channels: "2048", hostIMEX: computedomain.HostIMEXReady}
	for name, c := range map[string]struct {
		shared  bool
		service hostState
		want    map[string]any
	}{
		"as it is":          {true, hostState{known: true, label: computedomain.HostIMEXReady}, map[string]any{}},
		"not looked at yet": {true, hostState{}, map[string]any{}},
		"it has stopped": {true, hostState{known: true, label: hostimex.NotRunning},
			map[string]any{computedomain.LabelHostIMEX: hostimex.NotRunning}},
		"each domain has its own daemons now": {false, hostState{known: true},
			map[string]any{computedomain.LabelHostIMEX: nil, v1beta1.LabelClique: cliqueID, computedomain.LabelChannels: nil}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, labels.differences(inFabric, c.shared, c.service)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
