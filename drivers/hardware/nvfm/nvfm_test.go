package nvfm_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/drivers/hardware/nvfm"
	fake "gpufabric.io/fakes/nvfm"
)

func client(t *testing.T, m *fake.Manager) *nvfm.Client {
	t.Helper()
	library := fake.Library(t)
	return &nvfm.Client{Address: m.Address, Open: func() (string, error) { return library, nil }}
}

func wantStatus(t *testing.T, what string, got error, want nvfm.Status) {
	t.Helper()
	if !errors.Is(got, want) {
		t.Errorf("%s: got %v, want %v", what, got, want)
	}
}

func TestClientActivatesAndDeactivatesPartitions(t *testing.T) {
	m := fake.New(t, fake.HGX())
	c := client(t, m)
	all, err := c.Partitions(t.Context())
	if err != nil || len(all) != 15 || len(all[0].GPUs) != 8 || len(all[14].GPUs) != 1 || all[14].GPUs[0].Module != 8 {
		t.Fatalf("partitions %+v, %v", all, err)
	}
	if err := c.Activate(t.Context(), 4); err != nil { // modules 1 and 2
		t.Fatal(err)
	}
	wantStatus(t, "the same partition again", c.Activate(t.Context(), 4), nvfm.InUse)
	wantStatus(t, "a partition with one of its GPUs", c.Activate(t.Context(), 2), nvfm.InUse)
	wantStatus(t, "a partition that does not exist", c.Activate(t.Context(), 99), -1)
	wantStatus(t, "one that is not active", c.Deactivate(t.Context(), 5), nvfm.Uninitialized)
	if err := c.Activate(t.Context(), 5); err != nil {
		t.Error(err)
	}
	if err := c.Deactivate(t.Context(), 4); err != nil || !slices.Equal(m.Active(), []int{5}) {
		t.Errorf("active are %v, %v", m.Active(), err)
	}
}

func TestClientSetsActivePartitionsAfterRestart(t *testing.T) {
	m := fake.New(t, fake.HGX())
	c := client(t, m)
	if err := c.Activate(t.Context(), 2); err != nil {
		t.Fatal(err)
	}
	m.Restart(true)
	_, err := c.Partitions(t.Context())
	wantStatus(t, "before the list is set", err, nvfm.NotConfigured)
	if err := c.SetActivated(t.Context(), []int{2}); err != nil || !slices.Equal(m.Active(), []int{2}) {
		t.Errorf("active are %v, %v", m.Active(), err)
	}
	m.Restart(false)
	wantStatus(t, "in a mode without restarts", c.SetActivated(t.Context(), nil), nvfm.NotSupported)
}

func TestClientReportsFabricManagerThatDoesNotServe(t *testing.T) {
	m := fake.New(t, fake.HGX())
	c := client(t, m)
	m.Replace("mode shared", "mode baremetal")
	_, err := c.Partitions(t.Context())
	wantStatus(t, "without shared NVSwitch mode", err, nvfm.NotSupported)
	m.Stop()
	_, err = c.Partitions(t.Context())
	wantStatus(t, "without a fabric manager", err, nvfm.NotConnected)
	if text := fmt.Sprint(err); !strings.Contains(text, m.Address) {
		t.Errorf("%q lacks the address", text)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Partitions(ctx); err == nil {
		t.Error("no error though the context has ended")
	}
}

func TestClientReportsLibraryThatCannotBeOpened(t *testing.T) {
	noLibrary := filepath.Join(t.TempDir(), "libnvfm.so.1")
	if err := os.WriteFile(noLibrary, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		client *nvfm.Client
		want   string
	}{
		"it is not found":     {&nvfm.Client{Address: "/x", Open: func() (string, error) { return "", os.ErrNotExist }}, "not exist"},
		"it is no library":    {&nvfm.Client{Address: "/x", Open: func() (string, error) { return noLibrary, nil }}, noLibrary},
		"the address is long": {&nvfm.Client{Address: "/" + strings.Repeat("x", 255)}, "at most 255"},
		"it is no path":       {&nvfm.Client{Address: "127.0.0.1:6666"}, "Unix socket"},
	} {
		if _, err := c.client.Partitions(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %s", name, err, c.want)
		}
	}
}
