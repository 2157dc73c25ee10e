package policy

import (
	"strings"
	"testing"

	appsv1 "k8s.io/api/apps/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
)

// set is a DaemonSet with ten pods, with a letter for each that differs from the others: b: behind, runs an earlier template; d:
// down.
func set(name, strategy, state string) *appsv1.DaemonSet {
	s := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 2}}
	s.Spec.UpdateStrategy.Type = appsv1.DaemonSetUpdateStrategyType(strategy)
	old, down := int32(strings.Count(state, "b")), int32(strings.Count(state, "d"))
	s.Status = appsv1.DaemonSetStatus{
		ObservedGeneration: 2, DesiredNumberScheduled: 10, UpdatedNumberScheduled: 10 - old, NumberUnavailable: down, NumberAvailable: 10 - down,
	}
	return s
}

func TestUpgradeKeepsTheLimitOfNodes(t *testing.T) {
	const on, off = "RollingUpdate", "OnDelete"
	asked := func(limit int32) *mellanox.UpgradePolicySpec {
		return &mellanox.UpgradePolicySpec{AutoUpgrade: true, MaxParallelUpgrades: &limit}
	}
	unobserved := set("b", on, "")
	unobserved.Generation = 3
	for _, test := range []struct {
		name   string
		policy *mellanox.UpgradePolicySpec
		made   []*appsv1.DaemonSet
		want   string // the DaemonSets being updated, with how many pods may be down
	}{
		{"without a policy", nil, []*appsv1.DaemonSet{set("a", off, "bbb")}, ""},
		{"by hand", &mellanox.UpgradePolicySpec{MaxParallelUpgrades: ptr.To[int32](3)}, []*appsv1.DaemonSet{set("a", off, "bbb")}, ""},
		{"after a drain, which is not served", &mellanox.UpgradePolicySpec{AutoUpgrade: true, Drain: &mellanox.DrainSpec{}},
			[]*appsv1.DaemonSet{set("a", off, "bbb")}, ""},
		{"no limit given is one", &mellanox.UpgradePolicySpec{AutoUpgrade: true}, []*appsv1.DaemonSet{set("a", off, "bbb")}, "a:1"},
		{"no limit", asked(0), []*appsv1.DaemonSet{set("a", off, "b"), set("b", off, "b"), set("c", off, "")}, "a:100% b:100% c:100%"},
		{"nothing is there", asked(2), nil, "a:2"},
		{"nobody is behind: the first is ready for the next change", asked(2),
			[]*appsv1.DaemonSet{set("a", off, ""), set("b", on, ""), set("c", off, "")}, "a:2"},
		{"all are behind: the first begins", asked(2), []*appsv1.DaemonSet{set("a", off, "bb"), set("b", off, "bb"), set("c", off, "bb")}, "a:2"},
		{"the one that has begun goes on", asked(2), []*appsv1.DaemonSet{set("a", off, "bb"), set("b", on, "bbd"), set("c", off, "bb")}, "b:2"},
		{"one whose change was not seen yet goes on", asked(2), []*appsv1.DaemonSet{set("a", off, "bb"), unobserved, set("c", off, "")}, "b:2"},
		{"the first is done", asked(2), []*appsv1.DaemonSet{set("a", on, ""), set("b", off, "bb"), set("c", off, "bb")}, "b:2"},
		{"a node that is down anyway counts", asked(2), []*appsv1.DaemonSet{set("a", on, "d"), set("b", off, "bb"), set("c", off, "")}, "b:1"},
		{"as many are down as may be", asked(2), []*appsv1.DaemonSet{set("a", on, "dd"), set("b", off, "bb"), set("c", off, "")}, ""},
	} {
		t.Run(test.name, func(t *testing.T) {
			sets := []*appsv1.DaemonSet{set("a", "", ""), set("b", "", ""), set("c", "", "")}
			upgradeOf(test.policy).strategies(sets, test.made)
			var got []string
			for _, s := range sets {
				if rolling := s.Spec.UpdateStrategy.RollingUpdate; rolling != nil {
					got = append(got, s.Name+":"+rolling.MaxUnavailable.String())
				} else if s.Spec.UpdateStrategy.Type != off {
					t.Errorf("%s has the strategy %q", s.Name, s.Spec.UpdateStrategy.Type)
				}
			}
			if text := strings.Join(got, " "); text != test.want {
				t.Errorf("%q, want %q", text, test.want)
			}
		})
	}
}

// TestUpgradeEndsWithinTheLimit plays the DaemonSet controller: it replaces as many pods as the strategy allows, and they are
// up one step later.
func TestUpgradeEndsWithinTheLimit(t *testing.T) {
	limit := int32(3)
	u := upgradeOf(&mellanox.UpgradePolicySpec{AutoUpgrade: true, MaxParallelUpgrades: &limit})
	made := []*appsv1.DaemonSet{set("a", "OnDelete", strings.Repeat("b", 10)), set("b", "OnDelete", strings.Repeat("b", 10)),
		set("c", "OnDelete", strings.Repeat("b", 10))}
	for step := 0; ; step++ {
		if step > 100 {
			t.Fatalf("no end after %d steps: %+v", step, made)
		}
		wanted := []*appsv1.DaemonSet{set("a", "", ""), set("b", "", ""), set("c", "", "")}
		u.strategies(wanted, made)
		down, old := int32(0), int32(0)
		for n, s := range made {
			s.Spec.UpdateStrategy = wanted[n].Spec.UpdateStrategy
			s.Status.NumberUnavailable = 0 // Those of the previous step are up.
			if rolling := s.Spec.UpdateStrategy.RollingUpdate; rolling != nil {
				next := min(rolling.MaxUnavailable.IntVal, s.Status.DesiredNumberScheduled-s.Status.UpdatedNumberScheduled)
				s.Status.UpdatedNumberScheduled += next
				s.Status.NumberUnavailable = next
			}
			down += s.Status.NumberUnavailable
			old += s.Status.DesiredNumberScheduled - s.Status.UpdatedNumberScheduled
		}
		if down > limit {
			t.Fatalf("step %d: %d nodes are without their driver", step, down)
		}
		if old == 0 && down == 0 {
			return
		}
	}
}
