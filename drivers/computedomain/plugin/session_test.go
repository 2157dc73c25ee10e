package plugin

import (
	"context"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

const (
	sharedUID = types.UID("1f1c5d5e-9a5b-4f6e-8c39-5b2d6b0f8a22")
	tableUID  = types.UID("2f1c5d5e-9a5b-4f6e-8c39-5b2d6b0f8a33")
)

// newMixedNode is a node with a domain that has daemons of its own, in namespace user, and one that is channel 3 of the node's clique, in
// namespace other. The daemons of both are ready.
func newMixedNode(t *testing.T, shared bool) *testNode {
	t.Helper()
	n := newTestNode(t, inFabric)
	if n.mode = v1beta1.IMEXDomain; shared {
		n.mode = v1beta1.IMEXClique
	}
	domain := &v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{Namespace: "other", Name: "c", UID: sharedUID}}
	domain.Spec.Channel.AllocationMode = v1beta1.AllocationModeSingle
	domain.Status.IMEX = v1beta1.IMEXClique
	n.domains.(finder)["other"] = domain
	n.clique.object.Set(&v1beta1.ComputeDomain{
		ObjectMeta: metav1.ObjectMeta{UID: tableUID, Labels: map[string]string{v1beta1.LabelClique: cliqueID}},
		Status: v1beta1.ComputeDomainStatus{IMEX: v1beta1.IMEXClique,
			Channels: []v1beta1.ComputeDomainChannel{{Number: 3, DomainID: string(sharedUID)}}},
	})
	var pods []*corev1.Pod
	for _, of := range []types.UID{domainUID, tableUID} {
		pods = append(pods, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "imex-daemon", Labels: map[string]string{v1beta1.LabelComputeDomain: string(of)}},
			Status:     corev1.PodStatus{Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}},
		})
	}
	n.daemons.pods.Set(pods)
	return n
}

// ownClaim and sharedClaim are claims of the two domains.
func ownClaim(name string) *resourceapi.ResourceClaim {
	return asShare(channelClaim("user", v1beta1.AllocationModeSingle), name)
}

// asShare names a claim that the scheduler has allocated while the node's slice had a shared channel.
func asShare(claim *resourceapi.ResourceClaim, name string) *resourceapi.ResourceClaim {
	claim.Name, claim.UID = name, types.UID(name)
	share := types.UID("share-" + name)
	claim.Status.Allocation.Devices.Results[0].ShareID = &share
	return claim
}

func sharedClaim(name string) *resourceapi.ResourceClaim {
	return asShare(claimFor("other", computedomain.ChannelDevice, v1beta1.ComputeDomainChannelConfig{
		TypeMeta: meta("ComputeDomainChannelConfig"), DomainID: string(sharedUID), AllocationMode: v1beta1.AllocationModeSingle,
	}), name)
}

// refused prepares a claim that has to wait for pods of another domain, until it looks up which one that is, and returns the error.
func (n *testNode) refused(t *testing.T, claim *resourceapi.ResourceClaim, other types.UID) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	asked := n.domains
	defer func() { n.domains = asked }()
	n.domains = &askedFor{domainFinder: asked, uid: other, then: cancel}
	results, err := n.plugin.PrepareResourceClaims(ctx, []*resourceapi.ResourceClaim{claim})
	if err != nil {
		t.Fatal(err)
	}
	if results[claim.UID].Err == nil {
		t.Fatalf("claim %s was prepared", claim.Name)
	}
	return results[claim.UID].Err.Error()
}

func (n *testNode) must(t *testing.T, claim *resourceapi.ResourceClaim) {
	t.Helper()
	if result := n.prepare(t, claim); result.Err != nil {
		t.Fatalf("claim %s: %v", claim.Name, result.Err)
	}
}

func TestDomainsOfTwoModesHaveANodeOneAfterTheOther(t *testing.T) {
	for name, c := range map[string]struct {
		first, second func(string) *resourceapi.ResourceClaim
		holder        types.UID
		words, secret string
	}{
		"one with daemons of its own comes second": {sharedClaim, ownClaim, sharedUID, "imex clique or host", "other/c"},
		"one with daemons of its own comes first":  {ownClaim, sharedClaim, domainUID, "imex domain", "user/d"},
	} {
		t.Run(name, func(t *testing.T) {
			n := newMixedNode(t, true)
			first, second := c.first("first"), c.second("second")
			n.must(t, first)
			said := n.refused(t, second, c.holder)
			if !strings.Contains(said, "one IMEX session") || !strings.Contains(said, c.words) || strings.Contains(said, c.secret) {
				t.Errorf("the claim that waits says %q, which must not name the other namespace's domain", said)
			}
			if own, member := n.label(t, v1beta1.LabelComputeDomain), n.label(t, computedomain.MemberLabel(sharedUID)); own != "" && member != "" {
				t.Errorf("the node is labelled as part of both: %q, %q", own, member)
			}
			n.unprepare(t, first)
			n.must(t, second)
		})
	}
}

// Both came to the node while its slice had a shared channel.
func TestSessionKeepsTheLabelForTheSecondClaim(t *testing.T) {
	n := newMixedNode(t, false)
	n.must(t, ownClaim("one"))
	n.must(t, ownClaim("two"))
	n.unprepare(t, ownClaim("one"))
	if label := n.label(t, v1beta1.LabelComputeDomain); label != string(domainUID) {
		t.Fatalf("the label is %q while a pod of the domain runs: its daemon ends", label)
	}
	n.unprepare(t, ownClaim("two"))
	if label := n.label(t, v1beta1.LabelComputeDomain); label != "" {
		t.Errorf("the label %q is left", label)
	}
}

func TestSessionKeepsTheModeUntilClaimsEnd(t *testing.T) {
	for name, c := range map[string]struct {
		configured bool
		claim      *resourceapi.ResourceClaim
		held       bool
	}{
		"told to share, with a domain of its own daemons": {true, ownClaim("claim"), false},
		"told not to share, with a channel of the clique": {false, sharedClaim("claim"), true},
	} {
		t.Run(name, func(t *testing.T) {
			n := newMixedNode(t, c.configured)
			n.must(t, c.claim)
			now, changed := n.sharing()
			if now != c.held {
				t.Errorf("with the claim the channel is shared: %t", now)
			}
			n.unprepare(t, c.claim)
			select {
			case <-changed:
			default:
				t.Error("nobody is told that the claim has ended")
			}
			if now, _ = n.sharing(); now != c.configured {
				t.Errorf("without a claim the channel is shared: %t", now)
			}
		})
	}
}

// A pod may be faster than the controller, whose mode may be one that this node has not yet.
func TestSessionTakesTheModeFromTheDomain(t *testing.T) {
	n := newMixedNode(t, false)
	domain := n.domains.(finder)["other"]
	domain.Status.IMEX = ""
	n.domains = &slowFinder{finder: n.domains.(finder), until: 3, then: func() { domain.Status.IMEX = v1beta1.IMEXClique }}
	n.must(t, sharedClaim("claim"))
	if own := n.label(t, v1beta1.LabelComputeDomain); own != "" {
		t.Errorf("the node is still labelled for daemons of the domain %q", own)
	}
	if devices := n.injected(t).DeviceNodes; len(devices) != 1 || devices[0].Path != "/dev/nvidia-caps-imex-channels/channel3" {
		t.Errorf("injected %+v", devices)
	}
}

// askedFor calls then when a domain is requested.
type askedFor struct {
	domainFinder
	uid  types.UID
	then func()
}

func (f *askedFor) ByUID(ctx context.Context, namespace, hint string, uid types.UID) (*v1beta1.ComputeDomain, error) {
	if uid == f.uid {
		f.then()
	}
	return f.domainFinder.ByUID(ctx, namespace, hint, uid)
}

// slowFinder calls then before it answers for the until-th time.
type slowFinder struct {
	finder
	asked, until int
	then         func()
}

func (f *slowFinder) ByUID(ctx context.Context, namespace, hint string, uid types.UID) (*v1beta1.ComputeDomain, error) {
	if f.asked++; f.asked == f.until {
		f.then()
	}
	found, err := f.finder.ByUID(ctx, namespace, hint, uid)
	if found != nil {
		found = found.DeepCopy() // as an API server's answer
	}
	return found, err
}
