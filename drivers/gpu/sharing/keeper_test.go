package sharing

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/store"
)

// keep runs a keeper. It returns two ways to end it: a kill of its pod's container, and the pod's deletion.
func keep(t *testing.T, m *MPS) (end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- Keeper{MPS: m}.Run(ctx) }()
	end = func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	t.Cleanup(func() { cancel() })
	return end
}

// again is an MPS as in a restarted process.
func again(m *MPS) *MPS { return &MPS{Dir: m.Dir, Programs: m.Programs} }

func TestKeeperKeepsDaemonsWhenTheRequesterEnds(t *testing.T) {
	t.Parallel()
	m, commands := newMPS(t, "")
	plugin := Kept{Dir: m.Dir}
	if err := plugin.Start(t.Context(), "u1", limited("gpu")); err == nil || !strings.Contains(err.Error(), "gpufabric-mps-keeper") {
		t.Errorf("without a keeper: %v", err)
	}
	end := keep(t, m)
	// The plugin and the keeper start at the same time.
	if err := plugin.Resume(t.Context(), "u1", limited("gpu")); err != nil {
		t.Fatal(err)
	}
	const once = "start gpu; set_default_active_thread_percentage 50"
	// A plugin that was upgraded resumes and prepares its claims again.
	for _, ask := range []func(context.Context) error{
		func(ctx context.Context) error { return Kept{Dir: m.Dir}.Resume(ctx, "u1", limited("gpu")) },
		func(ctx context.Context) error { return Kept{Dir: m.Dir}.Start(ctx, "u1", limited("gpu")) },
	} {
		if err := ask(t.Context()); err != nil {
			t.Fatal(err)
		}
		if got := commands(); got != once {
			t.Fatalf("told %q, want %q", got, once)
		}
	}
	// Its daemons end with the keeper; it starts them again without a request.
	end()
	end = keep(t, again(m))
	defer end()
	for deadline := time.Now().Add(time.Minute); strings.Count(commands(), "percentage") < 2; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("told %q", commands())
		}
	}
	if err := plugin.Stop(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(m.Dir, "u1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the claim's directory is left: %v", err)
	}
}

func TestKeeperBeingAwayDoesNotKeepAClaim(t *testing.T) {
	t.Parallel()
	m, _ := newMPS(t, "")
	end := keep(t, m)
	plugin := Kept{Dir: m.Dir}
	if err := plugin.Resume(t.Context(), "u1", limited("gpu")); err != nil {
		t.Fatal(err)
	}
	end()
	for range 2 {
		if err := plugin.Stop(t.Context(), "u1"); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(filepath.Join(m.Dir, "u1")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the claim's directory is left: %v", err)
	}
}

func TestKeeperRejectsNamesWithPaths(t *testing.T) {
	t.Parallel()
	m, _ := newMPS(t, "")
	end := keep(t, m)
	defer end()
	plugin := Kept{Dir: m.Dir}
	if err := plugin.Resume(t.Context(), "u1", limited("gpu")); err != nil {
		t.Fatal(err)
	}
	for _, uid := range []string{"%2e%2e", "..%2Fu1", "a%2Fb", "%00"} {
		if err := plugin.ask(t.Context(), "DELETE", "/claims/"+uid, nil, nil); err == nil {
			t.Errorf("%s is taken", uid)
		}
	}
	if err := plugin.ask(t.Context(), "PUT", "/claims/u2", nil, []byte("null x")); err == nil || !strings.Contains(err.Error(), "settings") {
		t.Errorf("settings that are none: %v", err)
	}
}

// A container whose processes are root can put anything into its pipe directory.
func TestKeeperDoesNotFollowATenantsLinks(t *testing.T) {
	t.Parallel()
	m, commands := newMPS(t, "")
	outside := t.TempDir()
	kept := filepath.Join(outside, "kept")
	pipe := m.directory("u1").path("pipe")
	if err := errors.Join(os.WriteFile(kept, []byte("kept"), 0o600), os.MkdirAll(filepath.Join(pipe, "deep/er"), 0o755),
		os.Symlink(outside, filepath.Join(pipe, "log")), os.Symlink(kept, filepath.Join(pipe, "nvidia-cuda-mps-control.pid")),
		os.Symlink(kept, filepath.Join(pipe, "control"))); err != nil {
		t.Fatal(err)
	}
	if err := m.directory("u1").check(); err == nil || !strings.Contains(err.Error(), "neither a socket nor a FIFO") {
		t.Errorf("a link in the place of the socket: %v", err)
	}
	if err := m.Start(t.Context(), "u1", limited("gpu")); err != nil {
		t.Fatal(err)
	}
	if got, want := commands(), "start gpu; set_default_active_thread_percentage 50"; got != want {
		t.Errorf("told %q, want %q", got, want)
	}
	if text, err := os.ReadFile(kept); err != nil || string(text) != "kept" {
		t.Errorf("what a link led to is %q, %v", text, err)
	}
	if _, err := os.Stat(filepath.Join(pipe, "deep")); err == nil {
		t.Error("what a container left is still there")
	}
}

// A claim whose pod ended while the node had neither plugin nor keeper has no daemon when they come back.
func TestKeeperDoesNotRestartADaemonOfAnEndedClaim(t *testing.T) {
	t.Parallel()
	m, commands := newMPS(t, "")
	end := keep(t, m)
	plugin := Kept{Dir: m.Dir}
	for _, claim := range []types.UID{"u1", "u2"} {
		if err := plugin.Resume(t.Context(), claim, limited("gpu")); err != nil {
			t.Fatal(err)
		}
	}
	end()
	m = again(m)
	end = keep(t, m)
	defer end()
	at := Now()
	if err := plugin.Resume(t.Context(), "u3", limited("gpu")); err != nil {
		t.Fatal(err)
	}
	if err := plugin.Retain(t.Context(), at, []types.UID{"u1"}); err != nil {
		t.Fatal(err)
	}
	if err := plugin.Resume(t.Context(), "u1", limited("gpu")); err != nil {
		t.Fatal(err)
	}
	known, err := m.known()
	if err != nil || !slices.Equal(known, []types.UID{"u1", "u3"}) || len(m.states()) != 2 {
		t.Errorf("daemons and directories of %v (%v), %v; want u1, which exists, and u3, which was prepared since", known, err, m.states())
	}
	if !strings.Contains(commands(), "start gpu") {
		t.Errorf("told %q", commands())
	}
}

// Requests use connections of their own: an abandoned request may be read after a later one.
func TestKeeperIgnoresRequestsFromBeforeTheClaimsEnd(t *testing.T) {
	t.Parallel()
	m, commands := newMPS(t, "")
	end := keep(t, m)
	defer end()
	plugin := Kept{Dir: m.Dir}
	late := url.Values{"at": {Now().String()}, "resume": {""}}
	if err := plugin.Resume(t.Context(), "u1", limited("gpu")); err != nil {
		t.Fatal(err)
	}
	if err := plugin.Stop(t.Context(), "u1"); err != nil {
		t.Fatal(err)
	}
	if err := plugin.put(t.Context(), "u1", late, limited("gpu")); !refused(err, http.StatusConflict) {
		t.Errorf("a request from before the claim's end: %v", err)
	}
	if known, err := m.known(); err != nil || len(known) > 0 {
		t.Errorf("daemons or directories of %v, %v (told %q)", known, err, commands())
	}
}

func TestKeeperIsNotAliveWithoutAnAnswer(t *testing.T) {
	t.Parallel()
	m, _ := newMPS(t, "")
	plugin := Kept{Dir: m.Dir}
	if err := plugin.Alive(t.Context()); err == nil {
		t.Error("without a keeper")
	}
	end := keep(t, m)
	if err := plugin.Resume(t.Context(), "u1", limited("gpu")); err != nil {
		t.Fatal(err)
	}
	if err := plugin.Alive(t.Context()); err != nil {
		t.Error(err)
	}
	want := "# HELP gpufabric_mps_daemons MPS control daemons that are kept running, by state: ready, or starting, in which one stays that " +
		"cannot be set up.\n" +
		"# TYPE gpufabric_mps_daemons gauge\ngpufabric_mps_daemons{state=\"ready\"} 1\ngpufabric_mps_daemons{state=\"starting\"} 0\n"
	if err := testutil.CollectAndCompare(m, strings.NewReader(want), "gpufabric_mps_daemons"); err != nil {
		t.Error(err)
	}
	end()
	if err := plugin.Alive(t.Context()); err == nil {
		t.Error("after its end")
	}
}

// settingsOfU1 changes the stored settings of the claim u1.
func settingsOfU1(t *testing.T, m *MPS, text string) {
	t.Helper()
	if err := errors.Join(os.MkdirAll(filepath.Join(m.Dir, "u1"), 0o755),
		os.WriteFile(filepath.Join(m.Dir, "u1/settings.json"), []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
}

func TestKeeperIgnoresUnreadableSettings(t *testing.T) {
	t.Parallel()
	for name, text := range map[string]string{
		"cut": `{"kind":"gpufabric-mps-settings"`, "empty": "", "no checksum": `{"devices":["gpu"]}`,
		"changed": `{"kind":"gpufabric-mps-settings","version":1,"sha256":"0","value":{"devices":["gpu"]}}`,
	} {
		t.Run(name, func(t *testing.T) {
			m, _ := newMPS(t, "")
			settingsOfU1(t, m, text)
			metrics := prometheus.NewRegistry()
			ctx, cancel := context.WithCancel(t.Context())
			ended := make(chan error, 1)
			go func() { ended <- Keeper{MPS: m, Metrics: metrics}.Run(ctx) }()
			plugin := Kept{Dir: m.Dir}
			if err := plugin.Resume(t.Context(), "u2", limited("gpu")); err != nil {
				t.Fatal(err)
			}
			want := `# HELP gpufabric_state_files_set_aside State files that could not be read and that nobody has deleted since, by kind of state.
# TYPE gpufabric_state_files_set_aside gauge
gpufabric_state_files_set_aside{kind="gpufabric-mps-settings"} 1
`
			if err := testutil.GatherAndCompare(metrics, strings.NewReader(want)); err != nil {
				t.Error(err)
			}
			if daemons := m.states(); len(daemons) != 1 || !daemons["u2"] {
				t.Errorf("daemons run for %v, want u2 alone", daemons)
			}
			if err := plugin.Resume(t.Context(), "u1", limited("gpu")); err != nil {
				t.Errorf("gpu-plugin's own start: %v", err)
			}
			// A file that was set aside belongs to no claim: the report about it stays until a person deletes it.
			if err := plugin.Retain(t.Context(), Now(), nil); err != nil {
				t.Error(err)
			}
			if kept, err := os.ReadFile(filepath.Join(m.Dir, "unreadable/u1.settings.json")); err != nil || string(kept) != text {
				t.Errorf("set aside is %q, %v", kept, err)
			}
			cancel()
			if err := <-ended; err != nil {
				t.Error(err)
			}
		})
	}
}

func TestKeeperKeepsWholeSettingsWhenKilled(t *testing.T) {
	t.Parallel()
	for _, step := range atomicfile.Steps() {
		t.Run(string(step), func(t *testing.T) {
			m, _ := newMPS(t, "")
			old, err := settingsFormat().Encode(json.RawMessage(`{"devices":["old"]}`))
			if err != nil {
				t.Fatal(err)
			}
			settingsOfU1(t, m, string(old))
			options := store.Options{Directory: m.Dir, Extension: "/settings.json", Writer: atomicfile.Writer{
				Before: func(at atomicfile.Step, _ string) error {
					if at == step {
						return atomicfile.Crash()
					}
					return nil
				},
			}}
			settings, _, err := store.Open(options, settingsFormat())
			if err != nil {
				t.Fatal(err)
			}
			if err := settings.Put("u1", json.RawMessage(`{"devices":["new"]}`)); err == nil {
				t.Fatal("the kill was not noticed")
			}
			settings, unreadable, err := store.Open(store.Options{Directory: m.Dir, Extension: "/settings.json"}, settingsFormat())
			if err != nil || len(unreadable) > 0 {
				t.Fatal(unreadable, err)
			}
			text, _ := settings.Get("u1")
			var s Settings
			if err := json.Unmarshal(text, &s); err != nil || len(s.Devices) != 1 || s.Devices[0] != "old" && s.Devices[0] != "new" {
				t.Errorf("the next keeper reads %s, %v", text, err)
			}
		})
	}
}
