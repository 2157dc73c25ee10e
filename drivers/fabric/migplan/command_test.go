package migplan

import (
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/controller/demand"
)

func TestPlanNamesClaimsInTheWay(t *testing.T) {
	relief := []demand.Relief{{Node: "n1", Device: "gpu-0", Start: 4, Claims: []string{"claim team/a (gpu-0-mig-1g10gb-19-4), pod a"}}}
	for want, found := range map[string][]demand.Shortage{
		"No pod waits for a MIG device that only the end of a claim would make room for.\n": nil,
		`MIGLayout auto: pods wait for 2 of 3g.40gb. 8 compute slices are free, enough for one on 2 GPUs, where instances in use are in its place.
  The end of fewest claims would free:
    gpu-0 of node n1, memory slice 4: in use by claim team/a (gpu-0-mig-1g10gb-19-4), pod a
`: {{Layout: "auto", Shape: "3g.40gb", Waiting: 2, Free: 8, GPUs: 2, Reliefs: relief}},
		`MIGLayout auto: pods wait for 1 of 7g.80gb. 3 compute slices are free, too few for one on any GPU.
  No GPU of the layout can have one.
`: {{Layout: "auto", Shape: "7g.80gb", Waiting: 1, Free: 3}},
	} {
		var out strings.Builder
		if err := write(&out, found); err != nil || out.String() != want {
			t.Errorf("%v: got\n%s\nwant\n%s", err, out.String(), want)
		}
	}
}
