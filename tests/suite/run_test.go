package suite

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"
)

func testRunner(t *testing.T, out *bytes.Buffer) *Runner {
	t.Helper()
	return &Runner{Dir: t.TempDir(), Logs: filepath.Join(t.TempDir(), "logs"), Out: out, Parallel: 2, Pulse: time.Hour}
}

func keep(Result) error { return nil }

// of returns the result of a part.
func of(t *testing.T, results []Result, part string) Result {
	t.Helper()
	at := slices.IndexFunc(results, func(r Result) bool { return r.Part == part })
	if at < 0 {
		t.Fatalf("part %s has no result: %v", part, results)
	}
	return results[at]
}

func TestRunnerRunsEveryPartWhenOneFails(t *testing.T) {
	var out bytes.Buffer
	r := testRunner(t, &out)
	results, err := r.Run(t.Context(), []Part{
		{Name: "first", Command: "echo begun >order; echo one; echo two; exit 3", Limit: time.Minute},
		{Name: "second", Command: "cat order; nice", Limit: time.Minute, After: []string{"first"}, Low: true},
	}, keep)
	if err != nil {
		t.Fatal(err)
	}
	if got := of(t, results, "first").Failure; got != "exit status 3; its last lines: one | two" {
		t.Errorf("failure of the first part: %q", got)
	}
	if got := of(t, results, "second").Failure; got != "" {
		t.Errorf("the second part failed: %s", got)
	}
	log, err := os.ReadFile(filepath.Join(r.Logs, "second.log"))
	if err != nil || !strings.HasPrefix(string(log), "begun\n") {
		t.Errorf("log of the second part: %q, %v", log, err)
	}
}

func TestRunnerEndsPartAndItsChildrenAtTheLimit(t *testing.T) {
	var out bytes.Buffer
	r := testRunner(t, &out)
	for limit := time.Second; ; limit *= 4 {
		out.Reset()
		results, err := r.Run(t.Context(), []Part{
			{Name: "hangs", Command: "sleep 1000 & echo $! >child; echo waiting for a lock; wait", Limit: limit},
		}, keep)
		if err != nil {
			t.Fatal(err)
		}
		got := of(t, results, "hangs").Failure
		if got == fmt.Sprintf("ended at its limit of %s; its last lines: waiting for a lock", limit) {
			break
		}
		if limit > time.Minute { // a shell that has no processor says nothing within a short one
			t.Fatalf("failure: %q", got)
		}
	}
	if strings.Count(out.String(), "\n") != 2 {
		t.Errorf("a begin and an end are a line each, got:\n%s", out.String())
	}
	// The child has its signal, and ends when the machine has a processor for it. It is not ours, so that there is no event.
	child := readPID(t, filepath.Join(r.Dir, "child"))
	for end := time.Now().Add(time.Minute); running(child); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("the part's child %d still runs", child)
		}
	}
}

func readPID(t *testing.T, path string) (pid int) {
	t.Helper()
	content, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, digit := range strings.TrimSpace(string(content)) {
		pid = 10*pid + int(digit-'0')
	}
	return pid
}

// running reports whether a process exists and has not ended: an orphan that is not reaped stays as a zombie.
func running(pid int) bool {
	status, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return syscall.Kill(pid, 0) == nil && (err != nil || !strings.Contains(string(status), ") Z "))
}

func TestRunnerNamesMissingProgramAndFullDiskInOneLine(t *testing.T) {
	for name, test := range map[string]struct {
		needs []string
		free  func() error
		want  string
	}{
		"a program": {[]string{"no-such-program"}, nil, "not begun: it needs no-such-program, which is not on the PATH; install it"},
		"the disk": {nil, func() error { return errors.New("the filesystem of /tmp has 1.0 GiB left") },
			"not begun: the filesystem of /tmp has 1.0 GiB left"},
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			r := testRunner(t, &out)
			r.Free = test.free
			results, err := r.Run(t.Context(), []Part{{Name: "part", Command: "touch begun", Limit: time.Minute, Needs: test.needs}}, keep)
			if err != nil {
				t.Fatal(err)
			}
			if got := of(t, results, "part").Failure; got != test.want {
				t.Errorf("failure %q, want %q", got, test.want)
			}
			if _, err := os.Stat(filepath.Join(r.Dir, "begun")); err == nil {
				t.Error("the part began")
			}
		})
	}
}

func TestRunnerReportsPartsThatWereNotBegunWhenInterrupted(t *testing.T) {
	var out bytes.Buffer
	r := testRunner(t, &out)
	ctx, cancel := context.WithCancel(t.Context())
	results, err := r.Run(ctx, []Part{
		{Name: "first", Command: "true", Limit: time.Minute},
		{Name: "second", Command: "true", Limit: time.Minute, After: []string{"first"}},
	}, func(Result) error { cancel(); return nil })
	if err != nil {
		t.Fatal(err)
	}
	if got := of(t, results, "second").Failure; got != "not begun: the suite was interrupted" {
		t.Errorf("failure: %q", got)
	}
}

func TestRunnerRefusesPartsWithoutAnOrder(t *testing.T) {
	for want, parts := range map[string][]Part{
		"begins after b": {{Name: "a", After: []string{"b"}}, {Name: "b"}},
		"the name a":     {{Name: "a"}, {Name: "a"}},
	} {
		if _, err := testRunner(t, &bytes.Buffer{}).Run(t.Context(), parts, keep); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want an error with %q", err, want)
		}
	}
}

func TestFailuresShowsReportsOfTestsAndCompilers(t *testing.T) {
	r := testRunner(t, &bytes.Buffer{})
	const passed = `ok  	gpufabric.io/a	1.0s
    a_test.go:1: measured: apply: 1.0 s
I1127 01:54:22.304032   28607 search.go:107] "Containers lack something" err="x_test.go:1: y"
`
	const failed = `--- FAIL: TestA (0.00s)
    a_test.go:2: got 1, want 2
        more of it
FAIL	gpufabric.io/a	1.0s
make: *** [Makefile:1: test] Error 1
`
	if err := os.MkdirAll(r.Logs, 0o755); err != nil {
		t.Fatal(err)
	}
	beside := strings.Replace(failed, "FAIL\t", "ok  \tgpufabric.io/b\t1.0s\n?   \tgpufabric.io/c\t[no test files]\nFAIL\t", 1)
	if err := os.WriteFile(r.log("part"), []byte(passed+beside), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := r.Failures("part")
	if err != nil || strings.Join(got, "\n")+"\n" != failed {
		t.Errorf("failures %q, %v", got, err)
	}
}

func TestLastLinesAreShortAndOfTheLogsEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	long := strings.Repeat("x", lineRunes+1)
	if err := os.WriteFile(path, []byte(strings.Repeat("early\n", tailBytes/2)+"\n"+long+"\n\n end \n\xff\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, want := last(path, 3), long[:lineRunes]+"... | end | ?"; got != want {
		t.Errorf("last lines %q, want %q", got, want)
	}
	if got := last(path+".missing", 3); got != "(no output)" {
		t.Errorf("last lines of no log: %q", got)
	}
}

func TestFreeNamesTheFilesystemThatIsFull(t *testing.T) {
	sizes := func(path string) (uint64, error) {
		return map[string]uint64{"/home": 3 << 30, "/tmp": 1 << 30}[path], nil
	}
	if err := free(2<<30, sizes, "/home"); err != nil {
		t.Errorf("3 GiB are not enough: %v", err)
	}
	const want = "the filesystem of /tmp has 1.0 GiB left, and a part needs 2"
	if err := free(2<<30, sizes, "/home", "/tmp"); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("got %v", err)
	}
	if got, err := available(t.TempDir()); err != nil || got == 0 {
		t.Errorf("a temporary directory has %d bytes, %v", got, err)
	}
}
