package claimstate

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestStoreRefusesSecondProcess(t *testing.T) {
	dir := t.TempDir()
	first, err := Lock(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	now, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = Lock(now, dir)
	if err == nil {
		t.Fatal("two hold one state directory")
	}
	for _, want := range []string{dir, fmt.Sprintf("PID %d", os.Getpid()), "--state-dir"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v does not say %s", err, want)
		}
	}
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second, err := Lock(now, dir)
	if err != nil {
		t.Fatalf("after the first ended: %v", err)
	}
	_ = second.Close()
}

func TestStoreOpensOnFullDisk(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink("/dev/full", filepath.Join(dir, lockFile)); err != nil {
		t.Fatal(err)
	}
	lock, err := Lock(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := lock.Close(); err != nil {
		t.Error(err)
	}
}
