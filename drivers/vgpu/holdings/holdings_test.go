package holdings

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/vgpu/annotation"
	"gpufabric.io/drivers/vgpu/cards"
)

const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"

func deck() *cards.Deck {
	return &cards.Deck{Factor: 10, Cards: []cards.Card{{GPU: &inventory.GPU{UUID: uuid}, Slots: 3, Units: 1000, Cores: 100, Healthy: true}}}
}

func share(memory int64, cores int) []annotation.Share {
	return []annotation.Share{{UUID: uuid, Memory: memory, Cores: cores}}
}

func TestTakeRefusesWhatDoesNotFitAndNamesTheHolders(t *testing.T) {
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
			if err := book.Take(deck(), Holder{"a", "default/first, container main"}, test.held); err != nil {
				t.Fatal(err)
			}
			err := book.Take(deck(), Holder{"b", "default/second, container main"}, test.asked)
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
		if err := book.Take(deck(), Holder{"a", "a"}, share(1000, 0)); err != nil {
			t.Fatal(err)
		}
	}
	book.Release("a")
	if err := book.Take(deck(), Holder{"b", "b"}, share(1000, 0)); err != nil {
		t.Error(err)
	}
	book.Keep(map[string]bool{})
	if use := book.Use(deck(), uuid); use.Slots != 0 {
		t.Errorf("use %+v after every container ended", use)
	}
}

func TestTakeRefusesAnUnhealthyCard(t *testing.T) {
	var book Book
	d := deck()
	d.Cards[0].Healthy, d.Cards[0].Reason = false, "XID 79: GPU has fallen off the bus"
	if err := book.Take(d, Holder{"a", "a"}, share(1, 0)); err == nil || !strings.Contains(err.Error(), "XID 79") {
		t.Errorf("got %v, want the reason", err)
	}
}

func TestConcurrentTakesNeverOverbook(t *testing.T) {
	var book Book
	var group sync.WaitGroup
	for i := range 20 {
		group.Go(func() { _ = book.Take(deck(), Holder{fmt.Sprint(i), fmt.Sprint(i)}, share(400, 0)) })
	}
	group.Wait()
	if use := book.Use(deck(), uuid); use.Slots != 2 || use.Units != 800 {
		t.Errorf("use %+v, want two of 400", use)
	}
}
