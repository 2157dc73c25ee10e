package threads

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func TestLackIsThatOfAWaitingThread(t *testing.T) {
	const span, half = time.Second, time.Second / 2
	type threads = map[int]Thread
	sleeps := Thread{State: "S", Ran: time.Minute, Turns: 50}
	for name, c := range map[string]struct {
		before, after threads
		want          Shortage
	}{
		"it sleeps in a lock": {threads{1: sleeps, 2: sleeps}, threads{1: sleeps, 2: sleeps}, Nothing},
		"it is stopped":       {threads{1: {State: "T"}}, threads{1: {State: "T"}}, Nothing},
		"it runs in a loop":   {threads{1: {State: "R", Turns: 7}}, threads{1: {State: "R", Ran: span - span/10, Turns: 7}}, Nothing},
		"it wakes now and then, and is seen awake twice": {
			threads{1: {State: "R", Turns: 7}}, threads{1: {State: "R", Ran: span / 100, Turns: 9}}, Nothing},
		"it waits, and was given no turn":    {threads{1: {State: "R", Turns: 7}}, threads{1: {State: "R", Turns: 7}}, Processor},
		"it was given short turns":           {threads{1: {State: "R", Turns: 7}}, threads{1: {State: "R", Waited: half, Turns: 12}}, Processor},
		"a long wait has ended":              {threads{1: {State: "R"}}, threads{1: {State: "S", Waited: 8 * time.Second, Turns: 1}}, Processor},
		"it waited less than half":           {threads{1: {State: "S"}}, threads{1: {State: "S", Waited: half - 1, Turns: 3}}, Nothing},
		"one of its threads waits":           {threads{1: sleeps, 2: {State: "R"}}, threads{1: sleeps, 2: {State: "R"}}, Processor},
		"it waits for a disk":                {threads{1: {State: "D", Turns: 7}}, threads{1: {State: "D", Turns: 7}}, Disk},
		"its disk gives it a page at a time": {threads{1: {State: "D", Turns: 7}}, threads{1: {State: "D", Ran: span / 10, Turns: 60}}, Disk},
		"a thread that has just begun":       {threads{1: sleeps}, threads{1: sleeps, 2: {State: "R"}}, Nothing},
		"it is another process":              {nil, threads{1: {State: "R"}}, Nothing},
	} {
		t.Run(name, func(t *testing.T) {
			now := time.Now()
			if got := Lacked(Sample{now, c.before}, Sample{now.Add(span), c.after}); got != c.want {
				t.Errorf("it lacks %q, want %q", got, c.want)
			}
		})
	}
	// Two samples of one moment show no shortage.
	if now := (Sample{time.Now(), threads{1: {State: "R"}}}); Lacked(now, now) != Nothing {
		t.Error("within no time it lacks something")
	}
}

func TestThreadsReportTheLastLackOfAShortProgram(t *testing.T) {
	start := time.Now()
	for name, c := range map[string]struct {
		thread Thread
		want   Shortage
	}{
		"it waits for an answer":    {Thread{State: "S", Ran: time.Millisecond, Turns: 4}, Nothing},
		"it has run all the time":   {Thread{State: "R", Ran: 2 * time.Second, Turns: 4}, Nothing},
		"it has hardly run":         {Thread{State: "R", Ran: time.Millisecond, Turns: 4}, Processor},
		"it waited for a processor": {Thread{State: "S", Ran: time.Millisecond, Waited: time.Second, Turns: 4}, Processor},
		"its disk is slow":          {Thread{State: "D", Ran: time.Millisecond, Turns: 4}, Disk},
	} {
		now := Sample{start.Add(2 * time.Second), map[int]Thread{1: c.thread}}
		if got := LackedSince(start, now); got != c.want {
			t.Errorf("%s: it lacks %q, want %q", name, got, c.want)
		}
	}
}

// A thread's files as Linux 6.18 writes them.
func TestThreadsAreReadFromTheirFiles(t *testing.T) {
	root := t.TempDir()
	write := func(thread int, file, text string) {
		t.Helper()
		dir := filepath.Join(root, "40/task", fmt.Sprint(thread))
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	const rest = " 1 40 40 0 -1 4194304 100 0 2 0 3 4 0 0 20 0 2 0 8450 5824512 399 18446744073709551615 1 1 0 0 0 0 0 4096 0 0 0 0 17 1 " +
		"0 0 0 0 0 0 0 0 0 0 0 0 0\n"
	write(40, "stat", "40 (nvidia-imex) S"+rest)
	write(40, "schedstat", "930217 147849 3\n")
	write(41, "stat", "41 (a ) name) D"+rest)
	write(41, "schedstat", "1000000000 2000000000 12\n")
	write(42, "stat", "42 (ends) R"+rest) // it has ended before its other file was read
	got, err := FS{root}.Read(40)
	if err != nil {
		t.Fatal(err)
	}
	want := map[int]Thread{40: {"S", 930217, 147849, 3}, 41: {"D", time.Second, 2 * time.Second, 12}}
	if diff := cmp.Diff(want, got.Threads); diff != "" {
		t.Errorf("(-want +got)\n%s", diff)
	}
	if _, err := (FS{root}).Read(1); err == nil {
		t.Error("a process that is not there has threads")
	}
	write(50, "stat", "50 (x) S"+rest)
	if err := os.Rename(filepath.Join(root, "40/task/50"), filepath.Join(root, "40/task/50.gone")); err != nil {
		t.Fatal(err)
	}
	for _, thread := range []string{"40", "41"} {
		if err := os.Remove(filepath.Join(root, "40/task", thread, "schedstat")); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := (FS{root}).Read(40); err == nil {
		t.Error("a kernel that accounts no waits has threads")
	}
}

// begin starts a program, and waits until it has printed a line.
func begin(t *testing.T, words ...string) int {
	t.Helper()
	command := exec.CommandContext(t.Context(), words[0], words[1:]...)
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Kill()
		_ = command.Wait()
	})
	if _, err := out.Read(make([]byte, 1)); err != nil {
		t.Fatal(err)
	}
	return command.Process.Pid
}

// during samples a process twice.
func during(t *testing.T, pid int, span time.Duration) Shortage {
	t.Helper()
	var fs FS
	before, err := fs.Read(pid)
	if err != nil {
		t.Fatal(err)
	}
	time.Sleep(span)
	after, err := fs.Read(pid)
	if err != nil {
		t.Fatal(err)
	}
	return Lacked(before, after)
}

// await waits until a process runs a program and is in a state: a signal and an exec take a while on a busy machine.
func await(t *testing.T, pid int, program, state string) {
	t.Helper()
	for deadline := time.Now().Add(2 * time.Minute); ; time.Sleep(10 * time.Millisecond) {
		now, err := (FS{}).Read(pid)
		if err != nil {
			t.Fatal(err)
		}
		name, err := os.ReadFile(fmt.Sprintf("/proc/%d/comm", pid))
		if err != nil {
			t.Fatal(err)
		}
		if string(name) == program+"\n" && now.Threads[pid].State == state {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("process %d is not %s in state %s: %s%+v", pid, program, state, name, now)
		}
	}
}

// The kernel's own accounting, of processes of this machine: however busy it is, one that sleeps or is stopped wants no processor.
func TestLackDistinguishesSleepingFromStarved(t *testing.T) {
	const span = 300 * time.Millisecond
	const loop = "echo; while :; do :; done"
	stopped := begin(t, "sh", "-c", loop)
	if err := syscall.Kill(stopped, syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	// exec: the shell itself would wait for its child.
	sleeping := begin(t, "sh", "-c", "echo; exec sleep 3600")
	for _, c := range []struct {
		pid            int
		program, state string
	}{{stopped, "sh", "T"}, {sleeping, "sleep", "S"}} {
		await(t, c.pid, c.program, c.state)
		for range 3 {
			if lacks := during(t, c.pid, span); lacks != Nothing {
				t.Errorf("a process in state %s lacks %s", c.state, lacks)
			}
		}
	}

	// Of one processor a process of the policy SCHED_IDLE gets less than a hundredth beside two others.
	starved := begin(t, "sh", "-c", loop)
	var mine unix.CPUSet
	if err := unix.SchedGetaffinity(0, &mine); err != nil {
		t.Fatal(err)
	}
	var one unix.CPUSet
	for cpu := 0; one.Count() == 0; cpu++ {
		if mine.IsSet(cpu) {
			one.Set(cpu)
		}
	}
	for _, pid := range []int{starved, begin(t, "sh", "-c", loop), begin(t, "sh", "-c", loop)} {
		if err := unix.SchedSetaffinity(pid, &one); err != nil {
			t.Fatal(err)
		}
	}
	attributes := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_IDLE}
	if err := unix.SchedSetAttr(starved, &attributes, 0); err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(2 * time.Minute)
	for row := 0; row < 3; { // three times in a row
		if row++; during(t, starved, span) != Processor {
			row = 0
		}
		if time.Now().After(deadline) {
			t.Fatal("a process that is runnable and gets no processor lacks none")
		}
	}
}
