package holdings

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/sharedgpus"
)

const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"

func sharedGPUs() *sharedgpus.Set {
	return &sharedgpus.Set{Factor: 10, Cards: []sharedgpus.Card{{GPU: &inventory.GPU{UUID: uuid}, Slots: 3, Units: 1000, Cores: 100,
		Healthy: true}}}
}

func share(memory int64, cores int) []annotation.Share {
	return []annotation.Share{{UUID: uuid, Memory: memory, Cores: cores}}
}

// A namespace's names are its own: the error reaches the pod of another namespace.
func TestHoldingsDoNotNameHoldersOfOtherNamespaces(t *testing.T) {
	var book Book
	for i, holder := range []string{"secret/payroll", "secret/merger", "mine/earlier"} {
		namespace, _, _ := strings.Cut(holder, "/")
		h := Holder{ID: fmt.Sprint(i), Name: holder + ", container main", Namespace: namespace}
		if err := book.Take(sharedGPUs(), h, share(300, 10)); err != nil {
			t.Fatal(err)
		}
	}
	err := book.Take(sharedGPUs(), Holder{ID: "x", Name: "mine/attacker, container main", Namespace: "mine"}, share(500, 0))
	if err == nil || strings.Contains(err.Error(), "secret") || strings.Contains(err.Error(), "payroll") {
		t.Fatalf("the attacker reads %v", err)
	}
	if !strings.Contains(err.Error(), "held by mine/earlier, container main, 2 of other namespaces") {
		t.Errorf("%v does not say how many hold the GPU, and which of its own namespace", err)
	}
	var full *FullError
	if !errors.As(err, &full) || len(full.Holders) != 3 {
		t.Errorf("the node's log has the holders %+v, want all three", full)
	}
	t.Logf("attacker sees: %v", err)
}

func TestTakeRejectsOverfullGPUAndNamesHolders(t *testing.T) {
	for name, test := range map[string]struct {
		held, asked []annotation.Share
		want        string // part of the error; empty: it fits
	}{
		"beside another":               {share(500, 50), share(500, 50), ""},
		"more memory than is free":     {share(600, 0), share(500, 0), "4000 of its 10000 MiB are free and 5000"},
		"the whole memory":             {share(1, 0), share(0, 0), "MiB are free"},
		"more cores than are free":     {share(1, 60), share(1, 50), "40 of its 100 percent"},
		"an exclusive one beside any":  {share(1, 0), share(1, 100), "the card alone"},
		"any beside an exclusive one":  {share(1, 100), share(1, 0), "the card alone"},
		"two shares of one card":       {nil, append(share(500, 50), share(500, 50)...), ""},
		"two shares that are too much": {nil, append(share(600, 0), share(600, 0)...), "10000 of its 10000 MiB are free and 12000"},
		"a card of another node":       {nil, []annotation.Share{{UUID: "GPU-ffffffff-0000"}}, "not among this node's 1"},
	} {
		t.Run(name, func(t *testing.T) {
			var book Book
			if err := book.Take(sharedGPUs(), Holder{ID: "a", Name: "default/first, container main"}, test.held); err != nil {
				t.Fatal(err)
			}
			err := book.Take(sharedGPUs(), Holder{ID: "b", Name: "default/second, container main"}, test.asked)
			if test.want == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("got %v, want an error with %q", err, test.want)
			}
			if test.held != nil && !strings.Contains(err.Error(), "default/first") {
				t.Errorf("%v does not name the holder", err)
			}
			if book.Len() != 1 {
				t.Errorf("%d holders after a refusal, want the first alone", book.Len())
			}
		})
	}
}

func TestTakeAgainReplacesAndReleaseGivesBack(t *testing.T) {
	var book Book
	for range 2 {
		if err := book.Take(sharedGPUs(), Holder{ID: "a", Name: "a"}, share(1000, 0)); err != nil {
			t.Fatal(err)
		}
	}
	book.Release("a")
	if err := book.Take(sharedGPUs(), Holder{ID: "b", Name: "b"}, share(1000, 0)); err != nil {
		t.Error(err)
	}
	book.Keep(map[string]bool{})
	if use := book.Use(sharedGPUs(), uuid); use.Slots != 0 {
		t.Errorf("use %+v after every container ended", use)
	}
}

func TestTakeRefusesAnUnhealthyCard(t *testing.T) {
	var book Book
	d := sharedGPUs()
	d.Cards[0].Healthy, d.Cards[0].Reason = false, "XID 79: GPU has fallen off the bus"
	if err := book.Take(d, Holder{ID: "a", Name: "a"}, share(1, 0)); err == nil || !strings.Contains(err.Error(), "XID 79") {
		t.Errorf("got %v, want the reason", err)
	}
}

// A container on a failed GPU, or with a share that grew by rounding, still has its share when the GPU is healthy again.
func TestHoldingsBookEvenAWrongShare(t *testing.T) {
	var book Book
	d := sharedGPUs()
	d.Cards[0].Healthy, d.Cards[0].Reason = false, "XID 48"
	if err := book.Hold(d, Holder{ID: "a", Name: "a"}, share(600, 0)); err == nil || !strings.Contains(err.Error(), "XID 48") {
		t.Errorf("got %v, want what is wrong", err)
	}
	if err := book.Take(sharedGPUs(), Holder{ID: "b", Name: "b"}, share(600, 0)); err == nil || !strings.Contains(err.Error(), "held by a") {
		t.Errorf("got %v, want a refusal that names the holder", err)
	}
}

func TestConcurrentTakesNeverOverbook(t *testing.T) {
	var book Book
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() { _ = book.Take(sharedGPUs(), Holder{ID: fmt.Sprint(i), Name: fmt.Sprint(i)}, share(400, 0)) })
	}
	group.Wait()
	if use := book.Use(sharedGPUs(), uuid); use.Slots != 2 || use.Units != 800 {
		t.Errorf("use %+v, want two of 400", use)
	}
}

// TestHoldingsCountConcurrentContainers books all of a pod's containers before they run, as the kubelet does without NRI.
func TestHoldingsCountConcurrentContainers(t *testing.T) {
	type container struct {
		memory int64
		cores  int
		ends   bool
	}
	for name, test := range map[string]struct {
		containers []container
		other      int64  // memory that another pod has
		units      int64  // the pod's count
		want       string // part of the refusal of its last container
	}{
		"an init container that needs everything": {[]container{{1000, 100, true}, {1000, 100, false}}, 0, 1000, ""},
		"init containers one after the other":     {[]container{{600, 0, true}, {700, 0, true}, {500, 0, false}}, 300, 700, ""},
		"a sidecar beside the rest":               {[]container{{300, 0, false}, {600, 0, true}, {700, 0, false}}, 0, 1000, ""},
		"a sidecar that leaves no room":           {[]container{{400, 0, false}, {100, 0, true}, {700, 0, false}}, 0, 0, "asked for"},
		"ordinary ones are together": {[]container{{600, 0, false}, {600, 0, false}}, 0, 0,
			"10000 of its 10000 MiB are free and 12000"},
		"an init container that is too much": {[]container{{600, 0, false}, {500, 0, true}}, 0, 0,
			"10000 of its 10000 MiB are free and 11000"},
		"an init container beside another pod":         {[]container{{100, 0, false}, {900, 0, true}}, 100, 0, "default/other"},
		"an exclusive one beside a sidecar":            {[]container{{100, 0, false}, {100, 100, false}}, 0, 0, "the card alone"},
		"an exclusive init container beside a sidecar": {[]container{{100, 0, false}, {100, 100, true}}, 0, 0, "the card alone"},
		"an exclusive init container beside a pod":     {[]container{{100, 100, true}}, 100, 0, "the card alone"},
	} {
		t.Run(name, func(t *testing.T) {
			var book Book
			if test.other > 0 {
				if err := book.Take(sharedGPUs(), Holder{ID: "o", Name: "default/other"}, share(test.other, 0)); err != nil {
					t.Fatal(err)
				}
			}
			var err error
			for i, c := range test.containers {
				if err != nil {
					t.Fatalf("container %d: %v", i-1, err)
				}
				err = book.Take(sharedGPUs(), Holder{ID: fmt.Sprint("pod/", i), Name: "default/pod", Pod: "pod", Step: i, Ends: c.ends},
					share(c.memory, c.cores))
			}
			if test.want != "" {
				if err == nil || !strings.Contains(err.Error(), test.want) {
					t.Errorf("got %v, want an error with %q", err, test.want)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if got := book.Use(sharedGPUs(), uuid).Units - test.other; got != test.units {
				t.Errorf("the pod counts for %d units, want %d", got, test.units)
			}
		})
	}
}
