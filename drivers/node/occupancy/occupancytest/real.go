package occupancytest

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Processes are pods in the kernel's own cgroups of version 2, whose containers are processes.
type Processes struct {
	t    testing.TB
	root string
}

// Real puts cgroups of the kernel in the place of a node's cgroup root. It skips the test where no hierarchy of version 2 can be written.
func Real(t testing.TB, root string) Processes {
	t.Helper()
	made, err := hierarchy()
	if err != nil {
		t.Skipf("this test runs processes in cgroups of version 2, as root: %v", err)
	}
	p := Processes{t, made}
	t.Cleanup(func() {
		for _, below := range []string{"kubepods/burstable/podother", "kubepods/burstable", "kubepods", ""} {
			if err := os.Remove(filepath.Join(made, below)); err != nil && !errors.Is(err, os.ErrNotExist) {
				t.Error(err)
			}
		}
	})
	if err := errors.Join(os.MkdirAll(p.path("other"), 0o755), os.MkdirAll(filepath.Dir(root), 0o755), os.Symlink(made, root)); err != nil {
		t.Fatal(err)
	}
	return p
}

// hierarchy makes a cgroup below the first hierarchy of version 2 that is mounted.
func hierarchy() (string, error) {
	mounts, err := os.Open("/proc/self/mounts")
	if err != nil {
		return "", err
	}
	defer func() { _ = mounts.Close() }()
	for lines := bufio.NewScanner(mounts); lines.Scan(); {
		if fields := strings.Fields(lines.Text()); len(fields) > 2 && fields[2] == "cgroup2" {
			return os.MkdirTemp(fields[1], "gpufabric-test-")
		}
	}
	return "", errors.New("none is mounted")
}

func (p Processes) path(uid string) string {
	return filepath.Join(p.root, "kubepods/burstable/pod"+uid)
}

// run starts a container of a pod: a process that ignores SIGTERM. end ends it, and returns when the pod has no cgroup any more.
func (p Processes) run(uid string) (end func() error) {
	p.t.Helper()
	pod := p.path(uid)
	container := filepath.Join(pod, "c0ffee")
	if err := os.Mkdir(container, 0o755); err != nil {
		p.t.Fatal(err)
	}
	fd, err := unix.Open(container, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		p.t.Fatal(err)
	}
	defer func() { _ = unix.Close(fd) }()
	command := exec.Command("sh", "-c", "trap '' TERM; read nothing")
	input, err := command.StdinPipe() // open, so that the container waits
	if err != nil {
		p.t.Fatal(err)
	}
	command.SysProcAttr = &syscall.SysProcAttr{UseCgroupFD: true, CgroupFD: fd}
	if err := command.Start(); err != nil {
		p.t.Fatal(err)
	}
	end = sync.OnceValue(func() error {
		err := command.Process.Kill()
		_ = command.Wait() // reports that it was killed
		_ = input.Close()
		return errors.Join(err, os.Remove(container), os.Remove(pod))
	})
	p.t.Cleanup(func() { _ = end() }) // where the test ended first
	return end
}

// On is the same for a part of the test.
func (p Processes) On(t testing.TB) Processes { return Processes{t, p.root} }

// Tries is how often Taken takes a device.
const Tries = 50

// Taken gives a device to pods (by UID) one after the other, each of which is deleted by force while its container runs on. prepare gives
// it to a pod; forget removes the pod's cgroup as its deletion does, while the container runs; next gives the device to the next
// one, which waits for the container's end, and takes it back. A next that returns earlier has given the device to two.
func (p Processes) Taken(prepare func(try int, pod string), forget func(pod string) error, next func(try int)) {
	p.t.Helper()
	var longest time.Duration
	for try := range Tries {
		pod := fmt.Sprintf("uid-try-%d", try)
		if err := os.MkdirAll(p.path(pod), 0o755); err != nil {
			p.t.Fatal(err)
		}
		prepare(try, pod)
		end := p.run(pod)
		ended, over := make(chan time.Time, 1), make(chan error, 1)
		time.AfterFunc(time.Duration(rand.IntN(60))*time.Millisecond, func() {
			ended <- time.Now()
			over <- end()
		})
		forgotten := make(chan error, 1)
		go func() { forgotten <- forget(pod) }()
		next(try)
		now := time.Now()
		select {
		case at := <-ended:
			longest = max(longest, now.Sub(at))
		default:
			p.t.Errorf("try %d: the device was given to the next one while the container of the pod before it runs", try)
		}
		if err := errors.Join(<-over, <-forgotten); err != nil {
			p.t.Fatalf("try %d: %v", try, err)
		}
	}
	p.t.Logf("%d tries: the next one had the device %s after the container's end, at most", Tries, longest.Round(time.Millisecond))
}
