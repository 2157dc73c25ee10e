package atomicfile

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

func TestWriteLeavesOldOrNewFileAfterCrash(t *testing.T) {
	for _, step := range Steps() {
		t.Run(string(step), func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "file")
			if err := (Writer{}).Write(path, []byte("old"), 0o600); err != nil {
				t.Fatal(err)
			}
			crashing := Writer{Before: func(s Step, _ string) error {
				if s == step {
					return Crash()
				}
				return nil
			}}
			if err := crashing.Write(path, []byte("new"), 0o600); err == nil {
				t.Fatal("the crash went unnoticed")
			}
			want := "old"
			if step == StepSyncDir {
				want = "new"
			}
			if got, err := os.ReadFile(path); err != nil || string(got) != want {
				t.Errorf("the file holds %q (%v), want %q", got, err, want)
			}
			if _, err := Sweep(dir, "file"); err != nil {
				t.Fatal(err)
			}
			if entries, _ := os.ReadDir(dir); len(entries) != 1 {
				t.Errorf("after the sweep the directory holds %v", entries)
			}
		})
	}
}

func TestWriteRemovesTemporaryFileAfterFailure(t *testing.T) {
	dir := t.TempDir()
	full := errors.New("no space left on device")
	failing := Writer{Before: func(s Step, _ string) error {
		if s == StepSync {
			return full
		}
		return nil
	}}
	if err := failing.Write(filepath.Join(dir, "file"), []byte("x"), 0o600); !errors.Is(err, full) {
		t.Errorf("error %v", err)
	}
	if entries, _ := os.ReadDir(dir); len(entries) != 0 {
		t.Errorf("left %v", entries)
	}
}

func TestSweepKeepsOthersFiles(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{tempPrefix + "theirs-1", "ours", tempPrefix + "ours-1"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	swept, err := Sweep(dir, "ours")
	if err != nil || len(swept) != 1 || swept[0] != tempPrefix+"ours-1" {
		t.Errorf("swept %v, %v", swept, err)
	}
}

// writerEnv makes the test binary a process that rewrites a file for ever, for the next test to kill.
const writerEnv = "ATOMICFILE_TEST_WRITE"

func TestMain(m *testing.M) {
	if path := os.Getenv(writerEnv); path != "" {
		for i := 0; ; i++ {
			if err := (Writer{}).Write(path, content(byte(i)), 0o600); err != nil {
				fmt.Fprintln(os.Stderr, err)
				os.Exit(1)
			}
		}
	}
	os.Exit(m.Run())
}

// content is large enough for a write of it to be killed halfway.
func content(b byte) []byte { return bytes.Repeat([]byte{b}, 1<<20) }

func TestWriteLeavesCompleteFileWhenKilled(t *testing.T) {
	path := filepath.Join(t.TempDir(), "file")
	if err := (Writer{}).Write(path, content(0), 0o600); err != nil {
		t.Fatal(err)
	}
	for round := range 20 {
		child := exec.Command(os.Args[0])
		child.Env = append(os.Environ(), writerEnv+"="+path)
		child.Stderr = os.Stderr
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Duration(5+3*round) * time.Millisecond) // the moment of the kill varies
		if err := child.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = child.Wait() // killed
		got, err := os.ReadFile(path)
		if err != nil || len(got) != 1<<20 || !bytes.Equal(got, content(got[0])) {
			t.Fatalf("round %d: %d bytes, %v", round, len(got), err)
		}
	}
	if _, err := Sweep(filepath.Dir(path), "file"); err != nil {
		t.Fatal(err)
	}
}
