package deviceplugin

import (
	"context"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"gpufabric.io/drivers/node/deviceplugin/kubelettest"
	"gpufabric.io/drivers/node/filewatch"
)

// anything allocates nothing.
type anything struct{}

func (anything) Allocate(context.Context, []string) (*pluginapi.ContainerAllocateResponse, error) {
	return &pluginapi.ContainerAllocateResponse{}, nil
}

func TestResourceRegistersAgainWhenTheKubeletDoesNotOpenAStream(t *testing.T) {
	const lost = 3
	for _, test := range []struct {
		name   string
		before func(*kubelettest.Kubelet) // after the kubelet has seen the devices once; nil: it has not
	}{
		{"at the start", nil},
		{"after a stream that ended", (*kubelettest.Kubelet).DropStreams},
		{"after a restart", func(k *kubelettest.Kubelet) { k.Stop(); k.Start() }},
	} {
		t.Run(test.name, func(t *testing.T) {
			kubelet := kubelettest.New(t)
			kubelet.Start()
			host := NewHost(kubelet.Root(), &filewatch.Watcher{}, nil)
			host.streamPatience = 200 * time.Millisecond // a stream that is late costs a registration more, which does no harm
			ctx, cancel := context.WithCancel(t.Context())
			var group sync.WaitGroup
			t.Cleanup(func() { cancel(); group.Wait() })
			if test.before == nil {
				kubelet.TakeWithoutStream(lost)
			}
			const name = "example.com/widget"
			if _, err := host.Serve(name, anything{}, []Device{{ID: "0", Healthy: true}}); err != nil {
				t.Fatal(err)
			}
			group.Go(func() {
				if err := host.Run(ctx); err != nil {
					t.Error(err)
				}
			})
			if test.before != nil {
				kubelet.AwaitAllocatable(name, 1)
				kubelet.TakeWithoutStream(lost)
				test.before(kubelet)
			}
			kubelet.Await(name, "device after lost registrations", func(r kubelettest.Resource) bool {
				return r.Registrations > lost && r.Lists > 0 && r.Allocatable == 1
			})
		})
	}
}

func TestResourceRegistersOnlyWithTheKubeletThatItIdentified(t *testing.T) {
	kubelet := kubelettest.New(t)
	kubelet.Start()
	const name = "example.com/widget"
	host := NewHost(kubelet.Root(), &filewatch.Watcher{}, nil)
	r, err := host.Serve(name, anything{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	first, err := identify(filepath.Join(host.dir, kubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
	kubelet.Stop()
	kubelet.Start()
	if err := r.register(t.Context(), first); err == nil || !strings.Contains(err.Error(), "the kubelet's socket was replaced") {
		t.Errorf("a registration with the kubelet before: %v", err)
	}
	second, err := identify(filepath.Join(host.dir, kubeletSocket))
	if err != nil {
		t.Fatal(err)
	}
	if err := r.register(t.Context(), second); err != nil {
		t.Error(err)
	}
	if n := kubelet.View(name).Registrations; n != 1 {
		t.Errorf("%d registrations, want one", n)
	}
}
