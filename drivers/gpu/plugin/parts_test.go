package plugin

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	k8stesting "k8s.io/client-go/testing"
	"k8s.io/client-go/tools/record"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/handover"
	"gpufabric.io/drivers/gpu/health"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/gpu/selection"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/drain"
	"gpufabric.io/drivers/node/observed"
)

// known is what a part reads: a node of two whole GPUs, and their faults.
func known(t *testing.T) (*claims.Preparer, *health.Monitor) {
	t.Helper()
	m := gputest.New(t, 2)
	place := func(id string) (inventory.Place, error) { return inventory.Place{BusID: id}, nil }
	node, err := inventory.Reader{NVML: m, Locate: place}.Read()
	if err != nil {
		t.Fatal(err)
	}
	offer := devices.Options{Forms: devices.Forms{Mode: devices.ModeWhole}}
	kind := claims.New(&claims.Hardware{Node: node, Offer: offer, Pool: devices.NewPool(node, offer)}, claims.Options{})
	monitor, err := health.New(health.Options{NVML: m, Path: filepath.Join(t.TempDir(), "faults.json"), Now: time.Now, Node: kind.Node})
	if err != nil {
		t.Fatal(err)
	}
	return kind, monitor
}

// publications are what a publisher published: each device with the taints that it has.
type publications chan string

func (p publications) Learn() {}

func (p publications) Publish(resources resourceslice.DriverResources) error {
	var words []string
	for _, s := range resources.Pools["n1-gpu"].Slices {
		for _, d := range s.Devices {
			word := d.Name
			for _, taint := range d.Taints {
				word += " " + taint.Key
			}
			words = append(words, word)
		}
	}
	p <- strings.Join(words, ", ")
	return nil
}

func (p publications) await(t *testing.T, want string) {
	t.Helper()
	patience := time.After(time.Minute)
	for last := "nothing"; ; {
		select {
		case last = <-p:
			if last == want {
				return
			}
		case <-patience:
			t.Fatalf("published is %s, want %s", last, want)
		}
	}
}

func TestThePublisherWaitsForTheFormsAndFollowsEverySnapshot(t *testing.T) {
	kind, monitor := known(t)
	published := make(publications, 16)
	client := fake.NewClientset(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	p := &publisher{kind: kind, monitor: monitor, forms: &forms{}, handovers: &handovers{}, draining: &observed.Value[bool]{}, dra: published,
		pool: "n1-gpu", condition: conditions{client: client, node: "n1"}}
	p.draining.Set(true)
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() {
		if err := p.Run(ctx); err != nil {
			t.Error(err)
		}
	})
	select {
	case early := <-published:
		t.Errorf("before the forms were known %s was published", early)
	case <-time.After(50 * time.Millisecond):
	}
	p.forms.wish.Set(wish{known: true, answer: devices.Chosen{Reason: "ChartDefault"}})
	published.await(t, fmt.Sprintf("gpu-0 %[1]s, gpu-1 %[1]s", drain.Taint))
	p.draining.Set(false)
	published.await(t, "gpu-0, gpu-1")
	p.handovers.requests.Set(map[string]string{kind.Node().GPUs[1].UUID: "volcano"})
	published.await(t, "gpu-0, gpu-1 "+handover.Taint)
	kind.SetForms(devices.Forms{Mode: devices.ModeShareable})
	published.await(t, "gpu-0, gpu-1 "+handover.Taint)
	cancel()
	running.Wait()
}

// prepared are claims with the devices that they hold.
type prepared []claimstate.Record

func (p prepared) Records() []claimstate.Record { return append([]claimstate.Record{}, p...) }

// An API server that does not answer delays neither the next fault nor the node's condition.
func TestFaultsAreReportedWhenClaimsCannotBeRead(t *testing.T) {
	kind, _ := known(t)
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: "ml", Name: "train", UID: "u1"}}
	client := fake.NewClientset(claim)
	answer := make(chan struct{})
	client.PrependReactor("get", "resourceclaims", func(k8stesting.Action) (bool, runtime.Object, error) {
		<-answer
		return false, nil, nil
	})
	recorder := record.NewFakeRecorder(4 * maxInforming)
	i := newInformer(client, nodeEvents{recorder: recorder, node: "n1"}, kind,
		prepared{{Namespace: "ml", Name: "train", UID: "u1", Devices: []claimstate.Device{{Device: "gpu-0"}}}})
	ctx, cancel := context.WithCancel(t.Context())
	var running sync.WaitGroup
	running.Go(func() { i.Run(ctx) })
	fault := health.Fault{GPU: kind.Node().GPUs[0].UUID, Kind: health.XID, Fatal: true}
	for range 2 * maxInforming {
		i.inform(ctx, fault, corev1.EventTypeWarning, "GPUUnhealthy", "XID 79")
	}
	i.inform(ctx, health.Fault{GPU: kind.Node().GPUs[1].UUID}, corev1.EventTypeWarning, "GPUUnhealthy", "nobody holds it")
	if written := len(recorder.Events); written != 2*maxInforming+1 {
		t.Errorf("%d Events on the node before the API server answers", written)
	}
	close(answer)
	for n := 2*maxInforming + 1; n > 0; n-- {
		<-recorder.Events
	}
	for range maxInforming { // the waiting ones are written, one after another
		<-recorder.Events
	}
	cancel()
	running.Wait()
	if more := len(recorder.Events); more > 1 { // the one that was being written
		t.Errorf("%d more Events than may wait", more)
	}
}

func TestTheFormsOfTheLastRunAreOfferedFromTheFirstMoment(t *testing.T) {
	path := filepath.Join(t.TempDir(), "forms.json")
	first, err := openForms(path)
	if err != nil || first.last() != nil {
		t.Fatalf("before the first run: %v, %v", first.last(), err)
	}
	if err := first.keep(devices.Forms{Mode: devices.ModeShareable}); err != nil {
		t.Fatal(err)
	}
	next, err := openForms(path)
	if last := next.last(); err != nil || last == nil || last.Forms.Mode != devices.ModeShareable {
		t.Errorf("the next run: %v, %v", last, err)
	}
	if f := newForms(devices.Choice{}, nil, selection.Node{}, nodeEvents{}, next); !f.wish.Now().known {
		t.Error("the forms of the last run are not offered from the first moment")
	}
}
