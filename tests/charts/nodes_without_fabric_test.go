package charts

import (
	"slices"
	"testing"
)

func TestNodesWithoutFabricPublishChannelsOnlyWhenEnabled(t *testing.T) {
	for name, c := range map[string]struct {
		values     map[string]any
		fabricOnly bool
	}{
		"default":        {map[string]any{}, true},
		"published":      {map[string]any{"nodesWithoutFabric": true}, false},
		"published none": {map[string]any{"nodesWithoutFabric": false}, true},
	} {
		all := pods(t, renderValues(t, "gpufabric", map[string]any{"computeDomains": c.values}))
		for _, role := range []string{"gpufabric-compute-domain-plugin", "gpufabric-controller"} {
			if got := slices.Contains(all[role].Spec.Containers[0].Args, "--fabric-only"); got != c.fabricOnly {
				t.Errorf("%s: %s has --fabric-only: %t, want %t", name, role, got, c.fabricOnly)
			}
		}
	}
}
