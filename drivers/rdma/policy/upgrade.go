package policy

import (
	"cmp"
	"fmt"

	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
)

// upgrade is how nodes get a changed driver.
type upgrade struct {
	automatic bool
	parallel  int32 // nodes at a time; 0: all
}

// upgradeOf reads the policy of a driver. If it requests something unsupported before a node's driver is replaced, nothing is
// replaced: the request protects pods from losing the NIC that they use.
func upgradeOf(p *mellanox.UpgradePolicySpec) upgrade {
	if p == nil || !p.AutoUpgrade || len(unservedUpgrade(p)) > 0 {
		return upgrade{}
	}
	u := upgrade{automatic: true, parallel: 1}
	if p.MaxParallelUpgrades != nil {
		u.parallel = *p.MaxParallelUpgrades
	}
	return u
}

// unservedUpgrade lists the unsupported requests of an upgrade policy.
func unservedUpgrade(p *mellanox.UpgradePolicySpec) []string {
	if p == nil || !p.AutoUpgrade {
		return nil // Then nothing else has an effect, as in the network operator.
	}
	var missing []string
	if p.Drain != nil && (p.Drain.Enable == nil || *p.Drain.Enable) {
		missing = append(missing, "drain")
	}
	if p.SafeLoad {
		missing = append(missing, "safeLoad")
	}
	if p.WaitForCompletion != nil && p.WaitForCompletion.PodSelector != "" {
		missing = append(missing, "waitForCompletion")
	}
	return missing
}

// behind reports whether pods of a DaemonSet run an older template, as far as its controller has seen.
func behind(set *appsv1.DaemonSet) bool {
	s := set.Status
	return s.ObservedGeneration != set.Generation || s.UpdatedNumberScheduled < s.DesiredNumberScheduled
}

// strategies gives each DaemonSet its update strategy. There is one DaemonSet for each platform, but the limit counts all nodes. So
// one DaemonSet at a time is updated, and may have as many pods down as the limit allows beside those down in the others. It stays
// selected until all of its pods are updated.
func (u upgrade) strategies(sets, made []*appsv1.DaemonSet) {
	for _, set := range sets {
		set.Spec.UpdateStrategy = appsv1.DaemonSetUpdateStrategy{Type: appsv1.OnDeleteDaemonSetStrategyType}
	}
	if !u.automatic || len(sets) == 0 {
		return
	}
	if u.parallel == 0 {
		for _, set := range sets {
			set.Spec.UpdateStrategy = rolling(intstr.FromString("100%"))
		}
		return
	}
	found := make(map[string]*appsv1.DaemonSet, len(made))
	for _, set := range made {
		found[set.Name] = set
	}
	var turn, waiting *appsv1.DaemonSet
	down := int32(0)
	for _, set := range sets {
		is := found[set.Name]
		if is == nil {
			continue // It has no pods yet.
		}
		down += is.Status.NumberUnavailable
		if !behind(is) {
			continue
		}
		waiting = cmp.Or(waiting, set)
		if is.Spec.UpdateStrategy.Type == appsv1.RollingUpdateDaemonSetStrategyType {
			turn = cmp.Or(turn, set)
		}
	}
	// No DaemonSet is behind: the first is selected, so that a change of all templates at once begins with it alone.
	turn = cmp.Or(turn, waiting, sets[0])
	if is := found[turn.Name]; is != nil {
		down -= is.Status.NumberUnavailable
	}
	if left := u.parallel - down; left > 0 {
		turn.Spec.UpdateStrategy = rolling(intstr.FromInt32(left))
	}
}

func rolling(unavailable intstr.IntOrString) appsv1.DaemonSetUpdateStrategy {
	return appsv1.DaemonSetUpdateStrategy{
		Type: appsv1.RollingUpdateDaemonSetStrategyType, RollingUpdate: &appsv1.RollingUpdateDaemonSet{MaxUnavailable: &unavailable},
	}
}

// progress describes the progress of an upgrade; empty: every pod runs the right driver.
func (u upgrade) progress(set *appsv1.DaemonSet) string {
	if !behind(set) {
		return ""
	}
	s := set.Status
	text := fmt.Sprintf("DaemonSet %s: %d of %d pods run the driver that is asked for", set.Name, s.UpdatedNumberScheduled,
		s.DesiredNumberScheduled)
	if !u.automatic {
		text += "; drain each of the other nodes and delete its pod of the driver"
	}
	return text
}
