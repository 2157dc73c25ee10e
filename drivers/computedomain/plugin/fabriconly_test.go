package plugin

import (
	"context"
	"sync"
	"testing"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	clienttesting "k8s.io/client-go/testing"

	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/hardware/nvml"
)

func TestOffersNoneWithFabricOnlyWhenNodeHasNeitherFabricNorClaims(t *testing.T) {
	daemon := claimData{Daemon: domainUID}
	for name, c := range map[string]struct {
		fabric     fabric
		everywhere bool
		claims     []claimData
		unsure     bool
		want       bool
	}{
		"without fabric":                        {fabric: noFabric, want: true},
		"without fabric, published everywhere":  {fabric: noFabric, everywhere: true},
		"in its fabric":                         {fabric: inFabric},
		"joining":                               {fabric: fabric{known: true, state: nvml.Joining}},
		"GPUs that disagree":                    {fabric: troubled(nvml.ErrDisagree)},
		"a driver that is not loaded":           {fabric: fabric{known: true, state: nvml.NoFabric, problem: "x", problemKind: problemNoDriver}},
		"a channel is held":                     {fabric: noFabric, claims: []claimData{{Channel: domainUID}}},
		"a daemon runs":                         {fabric: noFabric, claims: []claimData{daemon}},
		"records of claims that cannot be read": {fabric: noFabric, unsure: true},
	} {
		t.Run(name, func(t *testing.T) {
			k := &preparer{fabricOnly: !c.everywhere}
			for _, data := range c.claims {
				k.holdings.hold("claim", "user", data)
			}
			if c.unsure {
				k.holdings.doubt()
			}
			if got := k.offersNone(c.fabric); got != c.want {
				t.Errorf("%t, want %t", got, c.want)
			}
		})
	}
}

func TestPublishFollowsFabricWithFabricOnly(t *testing.T) {
	n := newTestNode(t, noFabric)
	n.fabricOnly = true
	decided := make(chan struct{})
	var once sync.Once
	// The first publication looks for slices of an earlier run.
	n.client.PrependReactor("list", "resourceslices", func(clienttesting.Action) (bool, runtime.Object, error) {
		once.Do(func() { close(decided) })
		return false, nil, nil
	})
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	slices, err := n.client.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer slices.Stop()
	next := func() watch.Event {
		select {
		case event := <-slices.ResultChan():
			return event
		case <-ctx.Done():
			t.Fatal("no event of a ResourceSlice")
		}
		return watch.Event{}
	}
	ended := make(chan error, 1)
	go func() { ended <- publish(ctx, n.plugin, nodeName, n.preparer) }()
	select {
	case <-decided:
	case <-ctx.Done():
		t.Fatal("nothing was published")
	}
	n.fabric.Set(inFabric)
	event := next()
	slice, ok := event.Object.(*resourceapi.ResourceSlice)
	if !ok || event.Type != watch.Added || len(slice.Spec.Devices) != 2 ||
		slice.Spec.Devices[0].Attributes[computedomain.AttributeClique].StringValue == nil {
		t.Fatalf("%s %+v, want the devices of the node in its clique as the first slice", event.Type, event.Object)
	}
	n.fabric.Set(noFabric)
	for event.Type != watch.Deleted {
		event = next()
	}
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}
