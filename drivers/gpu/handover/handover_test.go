package handover

import (
	"context"
	"errors"
	"maps"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/drivers/node/filewatch"
)

const first, second = "GPU-aaaaaaaa-4e5f-6071-8293-a4b5c6d7e8f9", "GPU-bbbbbbbb-4e5f-6071-8293-a4b5c6d7e8f9"

func TestRequestRemainsUntilItIsWithdrawn(t *testing.T) {
	d := Directory(filepath.Join(t.TempDir(), "handover"))
	if err := d.Request("volcano", first, second); err != nil {
		t.Fatal(err)
	}
	again := Directory(string(d)) // another process, later
	got, err := again.Requests()
	if err != nil || !maps.Equal(got, map[string]string{first: "volcano", second: "volcano"}) {
		t.Fatalf("requests %v, %v", got, err)
	}
	if err := d.Request("device-plugin", second); err == nil || !strings.Contains(err.Error(), "volcano has it") {
		t.Errorf("a second owner got %v, want a refusal that names the first", err)
	}
	if err := d.Request("volcano", second); err != nil {
		t.Fatal(err)
	}
	if got, _ := d.Requests(); !maps.Equal(got, map[string]string{second: "volcano"}) {
		t.Errorf("requests %v after the first GPU was given up", got)
	}
}

func TestAwaitReturnsOnceEveryGPUIsConfirmed(t *testing.T) {
	d := Directory(t.TempDir())
	done := make(chan error, 1)
	go func() { done <- d.Await(t.Context(), &filewatch.Watcher{}, first, second) }()
	if err := d.Confirm(first); err != nil {
		t.Fatal(err)
	}
	select {
	case err := <-done:
		t.Fatalf("returned with one of two confirmed: %v", err)
	default:
	}
	if err := d.Confirm(first, second); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if err := d.Confirm(first); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := d.Await(ctx, &filewatch.Watcher{}, first, second)
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), second) || strings.Contains(err.Error(), first) {
		t.Errorf("got %v, want an error that names the GPU that is not confirmed", err)
	}
}

func TestNamesFromOutsideNeverBecomePaths(t *testing.T) {
	d := Directory(t.TempDir())
	if err := d.Request("volcano", "../../etc/passwd"); err == nil {
		t.Error("a path was taken for a UUID")
	}
	if err := d.Request("../x", first); err == nil {
		t.Error("a path was taken for an owner")
	}
	for name, text := range map[string]string{"notes.txt": "x", "GPU-zz.requested": "volcano", first + ".requested": "\x00\x01 not an owner"} {
		if err := os.WriteFile(filepath.Join(string(d), name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := d.Requests(); err != nil || len(got) != 0 {
		t.Errorf("requests %v, %v from files that are none", got, err)
	}
}
