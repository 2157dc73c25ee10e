package controller

import (
	"cmp"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

func holder(domain string, number int, all bool) v1beta1.ComputeDomainChannel {
	return v1beta1.ComputeDomainChannel{Number: number, All: all, DomainID: domain, Namespace: "user", Name: domain}
}

func wanting(name string, age time.Duration, mode v1beta1.AllocationMode) *v1beta1.ComputeDomain {
	domain := &v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: name, UID: types.UID(name),
		CreationTimestamp: metav1.NewTime(time.Unix(1_800_000_000, 0).Add(-age))}}
	domain.Spec.Channel.AllocationMode = mode
	return domain
}

func TestChannelsAssignTheLowestFreeNumber(t *testing.T) {
	const single, all = v1beta1.AllocationModeSingle, v1beta1.AllocationModeAll
	for name, c := range map[string]struct {
		kept   []v1beta1.ComputeDomainChannel
		wanted []*v1beta1.ComputeDomain
		count  int
		want   []v1beta1.ComputeDomainChannel
	}{
		"the oldest domain comes first": {nil, []*v1beta1.ComputeDomain{wanting("a", 1, single), wanting("b", 2, single)}, 2048,
			[]v1beta1.ComputeDomainChannel{holder("b", 0, false), holder("a", 1, false)}},
		"a gap is filled": {[]v1beta1.ComputeDomainChannel{holder("a", 0, false), holder("c", 2, false)},
			[]*v1beta1.ComputeDomain{wanting("b", 1, single)}, 2048,
			[]v1beta1.ComputeDomainChannel{holder("a", 0, false), holder("b", 1, false), holder("c", 2, false)}},
		"who has one keeps it": {[]v1beta1.ComputeDomainChannel{holder("a", 5, false)}, []*v1beta1.ComputeDomain{wanting("a", 1, single)}, 2048,
			[]v1beta1.ComputeDomainChannel{holder("a", 5, false)}},
		"a driver with one channel": {nil, []*v1beta1.ComputeDomain{wanting("a", 2, single), wanting("b", 1, single)}, 1,
			[]v1beta1.ComputeDomainChannel{holder("a", 0, false)}},
		"a driver with none": {nil, []*v1beta1.ComputeDomain{wanting("a", 2, single)}, 0, nil},
		"all channels wait for the last": {[]v1beta1.ComputeDomainChannel{holder("a", 0, false)},
			[]*v1beta1.ComputeDomain{wanting("b", 2, all)}, 2048, []v1beta1.ComputeDomainChannel{holder("a", 0, false)}},
		"who has all keeps others out": {nil, []*v1beta1.ComputeDomain{wanting("a", 2, all), wanting("b", 1, single)}, 2048,
			[]v1beta1.ComputeDomainChannel{holder("a", 0, true)}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := channelsOf(clique, c.kept, c.wanted, c.count); !slices.Equal(got, c.want) {
				t.Errorf("got %+v, want %+v", got, c.want)
			}
		})
	}
}

// sharedClique is a cluster of one clique with two controllers that run at the same time, and domains that appear and
// disappear.
type sharedClique struct {
	*cluster
	random *rand.Rand
	other  *Reconciler
	uid    types.UID
	// has are the numbers that nodes have given out, by node and domain.
	has map[[2]string]int
}

func newSharedClique(t *testing.T, seed uint64) *sharedClique {
	t.Helper()
	standing := cliqueDomain(clique, namespace)
	standing.UID = "clique"
	s := &sharedClique{cluster: newCluster(t, standing), random: rand.New(rand.NewPCG(seed, 0)), uid: standing.UID, has: map[[2]string]int{}}
	s.reconciler.settings.IMEX = v1beta1.IMEXClique
	s.other = newReconciler(s.reconciler.client, s.reconciler.live, s.events, s.reconciler.settings)
	s.other.now = s.reconciler.now
	for i := range 3 {
		s.must(s.Create(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%d", i),
			Labels: map[string]string{v1beta1.LabelClique: clique, computedomain.LabelChannels: "5"}}}))
	}
	return s
}

// reconcile runs one of the controllers for a domain. Its writes may be refused, since the other was faster.
func (s *sharedClique) reconcile(uid types.UID) {
	s.t.Helper()
	by := s.reconciler
	if s.random.IntN(2) == 0 {
		by = s.other
	}
	if _, err := by.Reconcile(s.t.Context(), uid); err != nil && !apierrors.IsConflict(err) {
		s.t.Fatal(err)
	}
	s.now = s.now.Add(time.Second)
}

func (s *sharedClique) table() *v1beta1.ComputeDomain {
	s.t.Helper()
	domain := &v1beta1.ComputeDomain{}
	s.must(s.Get(s.t.Context(), client.ObjectKey{Namespace: namespace, Name: computedomain.CliqueName(clique)}, domain))
	return domain
}

// node changes a node's label as its plugin does.
func (s *sharedClique) node(name string, domain types.UID, member bool) {
	s.t.Helper()
	node := &corev1.Node{}
	s.must(s.Get(s.t.Context(), client.ObjectKey{Name: name}, node))
	delete(node.Labels, computedomain.MemberLabel(domain))
	if member {
		node.Labels[computedomain.MemberLabel(domain)] = ""
	}
	s.must(s.Update(s.t.Context(), node))
}

// step makes one of the changes that may happen at any time.
func (s *sharedClique) step() {
	s.t.Helper()
	name := string(rune('a' + s.random.IntN(8)))
	domain := newDomain(name, 1)
	domain.UID = types.UID(fmt.Sprintf("%s-%d", domain.UID, s.random.IntN(1_000_000)))
	existing := &v1beta1.ComputeDomain{}
	err := s.Get(s.t.Context(), client.ObjectKeyFromObject(domain), existing)
	node := fmt.Sprintf("n%d", s.random.IntN(3))
	switch what := s.random.IntN(10); {
	case apierrors.IsNotFound(err):
		s.must(s.Create(s.t.Context(), domain))
		s.reconcile(domain.UID)
	case err != nil:
		s.t.Fatal(err)
	case what < 3: // prepare: set the label, check that the domain lives, read the number
		s.node(node, existing.UID, true)
		s.reconcile(s.uid)
		s.must(s.Get(s.t.Context(), client.ObjectKeyFromObject(domain), existing))
		if channel := computedomain.ChannelOf(s.table(), existing.UID); channel != nil && existing.DeletionTimestamp == nil {
			s.has[[2]string{node, string(existing.UID)}] = channel.Number
		}
	case what < 5: // unprepare, also of a domain that was deleted
		held := slices.SortedFunc(maps.Keys(s.has), func(a, b [2]string) int { return cmp.Or(cmp.Compare(a[0], b[0]), cmp.Compare(a[1], b[1])) })
		if len(held) > 0 {
			key := held[s.random.IntN(len(held))]
			delete(s.has, key)
			s.node(key[0], types.UID(key[1]), false)
		}
	case what < 6:
		s.must(s.Delete(s.t.Context(), existing))
	case what < 8:
		s.reconcile(existing.UID)
	default:
		s.reconcile(s.uid)
	}
}

func TestChannelsAreUniqueWithTwoControllers(t *testing.T) {
	for seed := range uint64(4) {
		s := newSharedClique(t, seed)
		for range 150 {
			s.step()
			numbers := map[int]string{}
			for _, channel := range s.table().Status.Channels {
				if other, held := numbers[channel.Number]; held {
					t.Fatalf("seed %d: channel %d is held by %s and %s", seed, channel.Number, other, channel.DomainID)
				}
				if numbers[channel.Number] = channel.DomainID; channel.Number >= 5 {
					t.Fatalf("seed %d: channel %d of 5", seed, channel.Number)
				}
			}
			for key, number := range s.has {
				if numbers[number] != key[1] {
					t.Fatalf("seed %d: node %s has channel %d for domain %s, and the table gives it to %q", seed, key[0], number, key[1],
						numbers[number])
				}
			}
		}
	}
}

// A pod that ran on the node keeps its claim reserved until the pod is deleted, which may never happen.
func TestChannelsAreFreedWhenANodeVanished(t *testing.T) {
	s := newSharedClique(t, 1)
	s.now = time.Now() // the in-memory client stamps the deletion with this
	d := newDomain("d", 1)
	s.must(s.Create(t.Context(), d))
	s.reconcile(d.UID)
	s.node("n0", d.UID, true)
	s.reconcile(s.uid)
	s.reconcile(d.UID)
	if computedomain.ChannelOf(s.table(), d.UID) == nil {
		t.Fatalf("the domain has no channel: %+v", s.table().Status.Channels)
	}
	s.use(d, "rank-0")
	s.must(s.Delete(t.Context(), &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n0"}}))
	s.must(s.Delete(t.Context(), s.domain("d")))
	for limit := s.now.Add(2 * time.Minute); ; {
		s.reconcile(d.UID)
		s.reconcile(s.uid)
		err := s.Get(t.Context(), client.ObjectKeyFromObject(d), &v1beta1.ComputeDomain{})
		if apierrors.IsNotFound(err) && computedomain.ChannelOf(s.table(), d.UID) == nil {
			break
		}
		if client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		if s.now.After(limit) {
			t.Fatalf("two minutes later the domain is there (%v), and holds %+v", err, s.table().Status.Channels)
		}
	}
	if said := s.said(); strings.Contains(said, "DeletedUnderPods") {
		t.Errorf("in clique mode no daemon ends with a domain, and pods keep what they share: %s", said)
	}
}

// An administrator deletes the clique's ComputeDomain, whose table is the only record of who has which channel, while pods run. One of
// their domains is being deleted.
func TestCliqueGivesDomainsTheirNumbersAgainWhenItIsMadeAgain(t *testing.T) {
	s := newSharedClique(t, 1)
	for i := range 3 {
		s.join(&v1beta1.ComputeDomain{ObjectMeta: metav1.ObjectMeta{UID: s.uid}}, fmt.Sprintf("n%d", i), fmt.Sprintf("10.0.0.%d", i+1), isReady)
	}
	numbers := map[types.UID]int{}
	for i, name := range []string{"c", "b", "a"} { // the numbers are not in the order of ages or UIDs
		d := newDomain(name, 1)
		d.CreationTimestamp = metav1.NewTime(s.now.Add(-time.Duration(i) * time.Hour))
		s.must(s.Create(t.Context(), d))
		s.reconcile(d.UID)
		s.node(fmt.Sprintf("n%d", i), d.UID, true)
		for range 20 { // writes of a status are collected for some seconds
			s.reconcile(s.uid)
			s.reconcile(d.UID)
		}
		numbers[d.UID] = computedomain.ChannelOf(s.table(), d.UID).Number
		if got := numberBefore(s.domain(name), clique); got != numbers[d.UID] {
			t.Fatalf("the status of domain %s has channel %d, the table %d", name, got, numbers[d.UID])
		}
	}
	s.now = time.Now() // the in-memory client stamps the deletion with this
	deleted := s.domain("b")
	s.use(deleted, "rank-0")
	s.must(s.Delete(t.Context(), deleted))
	gone := s.table()
	gone.Finalizers = nil
	s.must(s.Update(t.Context(), gone))
	s.must(client.IgnoreNotFound(s.Delete(t.Context(), gone)))
	for uid := range numbers {
		s.reconcile(uid) // it has no table now
	}
	again := cliqueDomain(clique, namespace)
	again.UID = "made again"
	s.must(s.Create(t.Context(), again))
	late := newDomain("late", 1)
	late.CreationTimestamp = metav1.NewTime(s.now.Add(-100 * time.Hour))
	s.must(s.Create(t.Context(), late))
	s.reconcile(late.UID)
	s.node("n0", late.UID, true)
	for range 2 {
		s.reconcile(again.UID)
	}
	for uid, number := range numbers {
		if channel := computedomain.ChannelOf(s.table(), uid); channel == nil || channel.Number != number {
			t.Errorf("domain %s has %+v, and its pods have channel %d", uid, channel, number)
		}
	}
	if channel := computedomain.ChannelOf(s.table(), late.UID); channel == nil || channel.Number != len(numbers) {
		t.Errorf("a domain that joins later has %+v, want channel %d", channel, len(numbers))
	}
}
