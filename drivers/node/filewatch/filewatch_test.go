package filewatch_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"k8s.io/klog/v2"
	"k8s.io/klog/v2/textlogger"

	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/filewatch/filewatchtest"
)

// soon is how long the report of a change may take. quiet is how long to wait for the absence of one.
const soon, quiet = 2 * time.Minute, 100 * time.Millisecond

func await(t *testing.T, changed <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-changed:
	case <-time.After(soon):
		t.Fatalf("nobody is told that %s", what)
	}
}

func nothing(t *testing.T, changed <-chan struct{}, what string) {
	t.Helper()
	select {
	case <-changed:
		t.Errorf("told of a change though %s", what)
	case <-time.After(quiet):
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func do(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// drain takes tokens until none has come for a moment: one change of the file system may cause several events.
func drain(changed <-chan struct{}) {
	for {
		select {
		case <-changed:
		case <-time.After(quiet):
			return
		}
	}
}

// instances counts the inotify instances of this process.
func instances(t *testing.T) int {
	t.Helper()
	entries, err := os.ReadDir("/proc/self/fd")
	do(t, err)
	count := 0
	for _, entry := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + entry.Name()); err == nil && strings.Contains(to, "inotify") {
			count++
		}
	}
	return count
}

func TestChangesOfADirectoryAreReported(t *testing.T) { changes(t, &filewatch.Watcher{}) }

func TestChangesOfADirectoryAreReportedWithoutInotify(t *testing.T) {
	if !filewatchtest.Spent(t) {
		return
	}
	w := &filewatch.Watcher{Interval: 10 * time.Millisecond}
	changes(t, w)
	if n := instances(t); n != 0 {
		t.Errorf("%d inotify instances", n)
	}
}

func changes(t *testing.T, w *filewatch.Watcher) {
	directory := t.TempDir()
	file, other := filepath.Join(directory, "file"), filepath.Join(directory, "other")
	entries, contents, named := w.Entries(t.Context(), directory), w.Contents(t.Context(), directory),
		w.Entries(t.Context(), directory, "file")
	nothing(t, entries, "nothing changed")
	for _, step := range []struct {
		what  string
		do    func()
		named bool
	}{
		{"a file came", func() { write(t, file, "1") }, true},
		{"another came", func() { write(t, other, "1") }, false},
		{"a file was replaced", func() { do(t, os.Rename(other, file)) }, true},
		{"a file went", func() { do(t, os.Remove(file)) }, true},
		{"a link came", func() { do(t, os.Symlink("nowhere", other)) }, false},
	} {
		step.do()
		await(t, entries, step.what)
		await(t, contents, step.what)
		if step.named {
			await(t, named, step.what)
		}
		drain(entries)
		drain(contents)
		if !step.named {
			nothing(t, named, step.what+", with another name")
		}
		drain(named)
	}
	write(t, file, "1")
	drain(contents)
	write(t, file, "2")
	await(t, contents, "a file was written")
}

func TestWatcherFollowsReplacedDirectory(t *testing.T) {
	replaced(t, &filewatch.Watcher{Interval: 50 * time.Millisecond})
}

func TestWatcherFollowsReplacedDirectoryWithoutInotify(t *testing.T) {
	if filewatchtest.Spent(t) {
		replaced(t, &filewatch.Watcher{Interval: 10 * time.Millisecond})
	}
}

func replaced(t *testing.T, w *filewatch.Watcher) {
	directory := filepath.Join(t.TempDir(), "late")
	changed := w.Entries(t.Context(), directory)
	for _, round := range []string{"the first", "the second"} {
		do(t, os.Mkdir(directory, 0o700))
		await(t, changed, "the directory came")
		drain(changed)
		write(t, filepath.Join(directory, "file"), round)
		await(t, changed, "a file came")
		drain(changed)
		do(t, os.Rename(directory, directory+" "+round))
		await(t, changed, "the directory went")
		drain(changed)
	}
}

// /dev/infiniband appears with the first RDMA device, and its entries at the same moment.
func TestWatcherWatchesNewSubdirectory(t *testing.T) {
	parent := t.TempDir()
	w := &filewatch.Watcher{Interval: time.Hour}
	_ = w.Entries(t.Context(), parent, "infiniband")
	directory := filepath.Join(parent, "infiniband")
	changed := w.Entries(t.Context(), directory)
	do(t, os.Mkdir(directory, 0o700))
	await(t, changed, "the directory came")
	write(t, filepath.Join(directory, "uverbs0"), "")
	await(t, changed, "a file came")
}

// Processes write to /dev/null a thousand times a second.
func TestEntriesIgnoresWrites(t *testing.T) {
	directory := t.TempDir()
	file := filepath.Join(directory, "null")
	write(t, file, "")
	w := &filewatch.Watcher{}
	entries := w.Entries(t.Context(), directory)
	contents := w.Contents(t.Context(), directory) // the kernel reports writes now
	write(t, file, "x")
	await(t, contents, "a file was written")
	nothing(t, entries, "a file was written, which is no change of entries")
}

func TestWatcherUsesOneInotifyInstance(t *testing.T) {
	before := instances(t)
	w := &filewatch.Watcher{}
	ctx, cancel := context.WithCancel(t.Context())
	root := t.TempDir()
	channels := map[string]<-chan struct{}{}
	for i := range 1000 {
		directory := filepath.Join(root, fmt.Sprint(i%500)) // two roles a directory
		do(t, os.MkdirAll(directory, 0o700))
		channels[fmt.Sprint(i)] = w.Entries(ctx, directory)
	}
	if n := instances(t) - before; n != 1 {
		t.Errorf("%d inotify instances", n)
	}
	write(t, filepath.Join(root, "123", "file"), "")
	await(t, channels["123"], "a file came")
	await(t, channels["623"], "a file came")
	nothing(t, channels["124"], "it is another directory")
	cancel()
	for deadline := time.Now().Add(soon); instances(t) != before; {
		if time.Now().After(deadline) {
			t.Fatalf("%d inotify instances after the last watch ended, %d before", instances(t), before)
		}
		time.Sleep(time.Millisecond)
	}
	// It may be used again.
	changed := w.Entries(t.Context(), root)
	write(t, filepath.Join(root, "file"), "")
	await(t, changed, "a file came")
}

// output is a logger's.
type output struct {
	mu   sync.Mutex
	text strings.Builder
}

func (o *output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.text.Write(p)
}

func (o *output) count(part string) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return strings.Count(o.text.String(), part)
}

func TestWatcherReportsInotifyLimitOnce(t *testing.T) {
	if !filewatchtest.Spent(t) {
		return
	}
	var out output
	ctx := klog.NewContext(t.Context(), textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(&out))))
	w := &filewatch.Watcher{Interval: 10 * time.Millisecond}
	root := t.TempDir()
	changed := w.Entries(ctx, root)
	_ = w.Entries(ctx, filepath.Join(root, "missing"))
	time.Sleep(10 * w.Interval)
	if n := out.count("fs.inotify.max_user_instances"); n != 1 {
		t.Errorf("said %d times: %s", n, out.text.String())
	}
	if n := testutil.ToFloat64(w); n < 1 {
		t.Errorf("gpufabric_directories_polled is %v", n)
	}
	filewatchtest.Restore(t)
	await(t, changed, "it is watched again")
	if n := out.count("is available again"); n != 1 {
		t.Errorf("the end is said %d times: %s", n, out.text.String())
	}
	if n := testutil.ToFloat64(w); n != 0 {
		t.Errorf("gpufabric_directories_polled is %v with inotify", n)
	}
	drain(changed)
	write(t, filepath.Join(root, "file"), "")
	await(t, changed, "a file came")
}
