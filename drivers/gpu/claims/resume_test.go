package claims

import (
	"context"
	"slices"
	"sync"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/sharing"
	"gpufabric.io/drivers/node/claimstate"
)

// daemons records its calls. It starts nothing before the test allows it.
type daemons struct {
	sharing.Daemons // methods that are not used here

	mu       sync.Mutex
	asked    []string
	starting chan types.UID
}

func (d *daemons) note(what string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked = append(d.asked, what)
}

// Resume waits, as for an absent keeper, and reports the end of the wait.
func (d *daemons) Resume(ctx context.Context, claim types.UID, _ sharing.Settings) error {
	d.starting <- claim
	<-ctx.Done()
	d.note("gave up " + string(claim))
	return ctx.Err()
}

func (d *daemons) Stop(_ context.Context, claim types.UID) error {
	d.note("stop " + string(claim))
	return nil
}

func (d *daemons) Retain(_ context.Context, _ sharing.Moment, claims []types.UID) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	slices.Sort(claims)
	for _, claim := range claims {
		d.asked = append(d.asked, "retain "+string(claim))
	}
	return nil
}

// After a boot the kubelet may unprepare a claim while the plugin still waits for the keeper to start the claim's daemon again.
func TestResumeEndsTheDaemonOfAnEndingClaim(t *testing.T) {
	asked := &daemons{starting: make(chan types.UID)}
	k := New(&Hardware{Node: &inventory.Node{}}, Options{MPS: asked})
	k.aside = []types.UID{"unread"}
	mps := []byte(`{"mps":{"devices":["GPU-a"]}}`)
	records := func() []claimstate.Record {
		return []claimstate.Record{{UID: "u1", Data: mps}, {UID: "plain"}}
	}
	ctx, cancel := context.WithCancel(t.Context())
	var resumed sync.WaitGroup
	resumed.Go(func() { k.ResumeMPS(ctx, records) })
	if claim := <-asked.starting; claim != "u1" {
		t.Errorf("%s is started again", claim)
	}
	if err := k.endSharing(t.Context(), "u1", data{MPS: &sharing.Settings{}}); err != nil {
		t.Fatal(err)
	}
	resumed.Wait()
	cancel()
	gaveUp, stopped := slices.Index(asked.asked, "gave up u1"), slices.Index(asked.asked, "stop u1")
	if gaveUp < 0 || stopped < gaveUp {
		t.Errorf("it was asked %v, want the end of the start before the end of the daemon", asked.asked)
	}
	for _, claim := range []string{"u1", "plain", "unread"} {
		if !slices.Contains(asked.asked, "retain "+claim) {
			t.Errorf("claim %s is not among those that exist: %v", claim, asked.asked)
		}
	}
}

func TestResumeSkipsAnEndedClaim(t *testing.T) {
	var r resumes
	r.end("u1")
	if ctx, _ := r.begin(t.Context(), "u1"); ctx != nil {
		t.Error("its daemon is started again")
	}
	r.close()
	r.end("u2")
	if len(r.ended) > 0 {
		t.Errorf("%v are remembered for nobody", r.ended)
	}
}
