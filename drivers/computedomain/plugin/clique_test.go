package plugin

import (
	"fmt"
	"slices"
	"testing"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/cel"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// table is a clique's table with so many channels, held by the domains d0, d1 and so on.
func table(held int) *v1beta1.ComputeDomain {
	c := &v1beta1.ComputeDomain{}
	for i := range held {
		c.Status.Channels = append(c.Status.Channels, v1beta1.ComputeDomainChannel{Number: i, DomainID: fmt.Sprint("d", i)})
	}
	return c
}

// Where all channels of a clique are held, the scheduler sends only the holders' pods to it. Others stay Pending, or run elsewhere. The
// expression is judged by the library of the scheduler, over the devices that the node publishes.
func TestCliqueChannelHasTheAttributeAllHeld(t *testing.T) {
	all := table(1)
	all.Status.Channels[0].All = true
	for name, c := range map[string]struct {
		table    *v1beta1.ComputeDomain
		channels int
		shared   bool
		// may are the domains, of d0 and another, whose claims may have a channel.
		may []string
	}{
		"no table yet":                       {nil, 1, true, []string{"d0", "another"}},
		"nobody holds a channel":             {table(0), 1, true, []string{"d0", "another"}},
		"one of two is held":                 {table(1), 2, true, []string{"d0", "another"}},
		"the only one is held":               {table(1), 1, true, []string{"d0"}},
		"one domain holds all 2048":          {all, 2048, true, []string{"d0"}},
		"more are held than the node has":    {table(3), 2, true, []string{"d0"}},
		"as many as can be named":            {table(mostHolders), mostHolders, true, []string{"d0"}},
		"more than can be named":             {table(mostHolders + 1), mostHolders + 1, true, []string{"d0", "another"}},
		"domains bring daemons of their own": {table(1), 1, false, []string{"d0", "another"}},
		"the node's fabric has no channels":  {table(1), -1, true, []string{"d0", "another"}},
		"a driver that says no number":       {table(1), 0, true, []string{"d0", "another"}},
	} {
		t.Run(name, func(t *testing.T) {
			f := inFabric
			f.channels = c.channels
			device := devicesOf(f, c.shared, "", holders(c.table, f.channelCount()))[0]
			if n := len(device.Attributes) + len(device.Capacity); n > 32 {
				t.Errorf("%d attributes, where the API server takes 32", n)
			}
			var may []string
			for _, domain := range []string{"d0", "another"} {
				compiled := cel.GetCompiler(cel.Features{}).CompileCELExpression(computedomain.FreeFor(types.UID(domain)), cel.Options{})
				if compiled.Error != nil {
					t.Fatal(compiled.Error)
				}
				matches, _, err := compiled.DeviceMatches(t.Context(), cel.Device{Driver: computedomain.Driver, Attributes: device.Attributes,
					AllowMultipleAllocations: device.AllowMultipleAllocations})
				if err != nil {
					t.Fatal(err)
				}
				if matches {
					may = append(may, domain)
				}
			}
			if !slices.Equal(may, c.may) {
				t.Errorf("the scheduler gives a channel to %v, want %v", may, c.may)
			}
		})
	}
}
