package seccomp

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"sync"
	"testing"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/node/seccomp/seccomptest"
)

// The test program tries what an attacker would, in a process of its own: a filter cannot be removed again.
func TestMain(m *testing.M) {
	rules := map[string]Rules{"strict": {}, "mounts": {Mounts: true}, "join": {Join: true}}
	if len(os.Args) != 3 {
		os.Exit(m.Run())
	}
	switch how := os.Args[1]; how {
	case "process":
		threads(rules[os.Args[2]])
	case "thread":
		runtime.LockOSThread()
		err := rules[os.Args[2]].Thread()
		if err == nil {
			err = unix.Exec("/proc/self/exe", []string{"test", "attempts", "now"}, os.Environ())
		}
		fmt.Println(err)
	case "attempts":
		seccomptest.Attempts(os.Stdout)
	}
	os.Exit(0)
}

// threads checks that the rules also apply to threads that already run.
func threads(rules Rules) {
	const count = 8
	var ready, ended sync.WaitGroup
	begin := make(chan struct{})
	printed := make([]strings.Builder, count)
	ready.Add(count)
	for i := range count {
		ended.Go(func() {
			runtime.LockOSThread()
			ready.Done()
			<-begin
			seccomptest.Attempts(&printed[i])
		})
	}
	ready.Wait()
	if before, err := Filtered(); before || err != nil {
		fmt.Println("filtered before:", before, err)
	}
	if err := rules.Process(); err != nil {
		fmt.Println(err)
	}
	if after, err := Filtered(); !after || err != nil {
		fmt.Println("filtered after:", after, err)
	}
	close(begin)
	ended.Wait()
	for i := range count {
		if printed[i].String() != printed[0].String() {
			fmt.Println("another thread:", printed[i].String())
		}
	}
	fmt.Print(printed[0].String())
}

func attempt(t *testing.T, how, rules string) string {
	t.Helper()
	if filtered, err := Filtered(); errors.Is(err, unix.EINVAL) || filtered {
		t.Skipf("this machine has a filter of its own (%t), or none at all: %v", filtered, err)
	}
	out, err := exec.CommandContext(t.Context(), "/proc/self/exe", how, rules).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return strings.TrimSpace(string(out))
}

func TestFilterAppliesToAllThreads(t *testing.T) {
	for rules, lets := range map[string]map[string]string{
		"strict": {},
		"mounts": {"mount=EPERM": "mount=EFAULT", "clone of mounts=EPERM": "clone of mounts=EINVAL"},
		"join":   {"setns=EPERM": "setns=EBADF"},
	} {
		want := seccomptest.Refused
		for refused, let := range lets {
			want = strings.ReplaceAll(want, refused, let)
		}
		if got := attempt(t, "process", rules); got != want {
			t.Errorf("rules %s: the kernel answers\n%s\nwant\n%s", rules, got, want)
		}
	}
}

func TestFilterAppliesAfterExec(t *testing.T) {
	if got := attempt(t, "thread", "strict"); got != seccomptest.Refused {
		t.Errorf("the kernel answers\n%s\nwant\n%s", got, seccomptest.Refused)
	}
}
