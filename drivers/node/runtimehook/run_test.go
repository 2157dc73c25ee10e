package runtimehook

import (
	"context"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/containerd/nri/pkg/api"
)

// plugin is an NRI plugin that counts how often the runtime was away.
type plugin struct{ away chan struct{} }

func (p *plugin) Disconnected() { p.away <- struct{}{} }

// StopPodSandbox makes it a valid plugin: NRI refuses a plugin without any of its methods.
func (p *plugin) StopPodSandbox(context.Context, *api.PodSandbox) error { return nil }

func newPlugin() *plugin { return &plugin{away: make(chan struct{}, 16)} }

func settings(socket string) Settings {
	return Settings{Socket: socket, Name: "test", Index: "30", Without: "nothing works"}
}

func (p *plugin) await(t *testing.T, times int) {
	t.Helper()
	for n := range times {
		select {
		case <-p.away:
		case <-time.After(time.Minute):
			t.Fatalf("the runtime was found away %d times, want %d", n, times)
		}
	}
}

func TestRunReturnsWithoutSocket(t *testing.T) {
	p := newPlugin()
	if err := Run(t.Context(), settings(""), p); err != nil || len(p.away) > 0 {
		t.Errorf("%v, away %d times", err, len(p.away))
	}
}

// deaf has no method that a runtime could call.
type deaf struct{}

func (deaf) Disconnected() {}

func TestRunFailsForInvalidPlugin(t *testing.T) {
	if err := Run(t.Context(), settings("/nowhere"), deaf{}); err == nil || !strings.Contains(err.Error(), "make the NRI plugin test") {
		t.Errorf("got %v", err)
	}
}

func TestRunRetriesUntilRoleEnds(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "nri.sock")
	p := newPlugin()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Run(ctx, settings(socket), p) }()
	p.await(t, 2) // there is no socket yet
	listener, err := (&net.ListenConfig{}).Listen(ctx, "unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }() // the test is over
	for range 2 {
		connection, err := listener.Accept() // a runtime that connects, and closes before it has sent anything
		if err != nil {
			t.Fatal(err)
		}
		if err := connection.Close(); err != nil {
			t.Fatal(err)
		}
	}
	p.await(t, 1)
	cancel()
	select {
	case err := <-ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(time.Minute):
		t.Error("the hook goes on after its role has ended")
	}
}
