//go:build faults

package faults

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fixture"
	"gpufabric.io/tests/simcluster/smalldisk"
	"gpufabric.io/tests/simcluster/wallclock"
)

// silenceAndReboot cuts a node off until the cluster counts it as lost, then boots it with newly rendered hardware. Changes of plugins in
// the hardware, such as MIG instances, are gone. Their files on disk are not.
func silenceAndReboot(s *scenario) {
	s.start()
	s.pause(2500 * time.Millisecond)
	node := shared.Fleet.Nodes()[s.victim]
	if err := node.Silence(s.t.Context(), true); err != nil {
		s.t.Fatal(err)
	}
	reboot := sync.OnceFunc(func() { shared.Fleet.Reboot(s.victim) })
	defer reboot() // a scenario that fails must not leave the node silent for the next one
	s.n.AwaitReady(cluster.NodeName(s.victim), false)
	if err := os.Remove(filepath.Join(nodeDir(s.victim), "f/state/rendered.json")); err != nil {
		s.t.Fatal(err)
	}
	reboot()
	s.n.AwaitReady(cluster.NodeName(s.victim), true)
	s.settle()
	s.end()
}

func (s *scenario) stateDir() string { return filepath.Join(nodeDir(s.victim), "r/var/lib/gpufabric") }

// blockState puts a file where each plugin's state directory is: whatever it writes fails, for root too. The directory for
// drains remains usable. If it cannot be read, that counts as a drain, and then claims are not allocated.
func blockState(s *scenario) {
	exchange := func() (err error) { // in one step: plugins make directories that are missing
		for _, plugin := range plugins() {
			dir := filepath.Join(s.stateDir(), plugin)
			err = errors.Join(err, unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, dir+".aside", unix.RENAME_EXCHANGE))
		}
		return err
	}
	for _, plugin := range plugins() {
		if err := os.WriteFile(filepath.Join(s.stateDir(), plugin+".aside"), nil, 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	unblock := sync.OnceFunc(func() {
		err := exchange()
		for _, plugin := range plugins() {
			err = errors.Join(err, os.Remove(filepath.Join(s.stateDir(), plugin+".aside")))
		}
		if err != nil {
			s.t.Errorf("give %s its state directories back: %v", cluster.NodeName(s.victim), err)
		}
	})
	defer unblock() // a scenario that fails must not break the next ones on its nodes
	if err := exchange(); err != nil {
		s.t.Fatal(err)
	}
	s.start()
	s.explain("not a directory")
	unblock()
	s.settle()
	s.end()
}

// fillDisk leaves no byte where the plugins keep their state, or where they write CDI specs.
func fillDisk(s *scenario) {
	if !smalldisk.Inside() {
		s.t.Skipf("no full disk without root here: %v", fullDisks)
	}
	dir := s.stateDir()
	if s.random.IntN(2) == 0 {
		dir = filepath.Join(nodeDir(s.victim), "r/var/run/cdi")
	}
	makeRoom, err := smalldisk.Fill(dir)
	if err != nil {
		s.t.Fatal(err)
	}
	defer func() {
		if err := smalldisk.Release(dir); err != nil {
			s.t.Error(err)
		}
	}()
	s.start()
	s.explain("no space left on device")
	if err := makeRoom(); err != nil {
		s.t.Fatal(err)
	}
	s.settle()
	s.end()
}

// stepClocks moves the wall clocks of the victim's plugins and of the controller in opposite directions while the domain forms,
// and back past the right time when it has formed. Timers do not move with them, as on any Linux.
func stepClocks(s *scenario) {
	// Back by less than an hour, since the API server's certificate is valid from an hour ago.
	forth, back := s.between(time.Hour, 12*time.Hour), -s.between(10*time.Minute, 50*time.Minute)
	if s.random.IntN(2) == 0 {
		forth, back = back, forth
	}
	victims := s.programs()
	step := func(plugins, controller time.Duration) {
		for at, pid := range victims {
			by := plugins
			if at == len(victims)-1 {
				by = controller
			}
			err := wallclock.Step(pid, by)
			switch {
			case errors.Is(err, wallclock.ErrUnsupported), errors.Is(err, os.ErrPermission):
				s.t.Skipf("no process can be given another clock here: %v", err)
			case err != nil && alive(pid): // others may kill the controller meanwhile
				s.t.Error(err)
			}
		}
	}
	step(forth, back)
	s.start()
	s.settle()
	step(back-forth, forth-back)
	s.end()
	step(-back, -forth)
}

func (s *scenario) between(from, to time.Duration) time.Duration {
	return from + time.Duration(s.random.Int64N(int64(to-from)))
}

// programs are the victim's plugins and, last, the controller, which other faults may be restarting.
func (s *scenario) programs() []int {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), fixture.Patience)
	defer cancel()
	var found []int
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) { // processes have no event
		found = append(s.pids("--node-name="+cluster.NodeName(s.victim)), s.pids("\x00controller\x00")...)
		return len(found) == len(plugins())+1, nil
	})
	if err != nil {
		s.t.Fatalf("found %d programs of ours to give another clock; want %d", len(found), len(plugins())+1)
	}
	return found
}

// pids are the child processes whose command line contains a text.
func (s *scenario) pids(text string) []int {
	s.t.Helper()
	lists, err := filepath.Glob("/proc/self/task/*/children")
	if err != nil {
		s.t.Fatal(err)
	}
	var found []int
	for _, list := range lists {
		children, _ := os.ReadFile(list) // of a thread that has ended: others have its children
		for _, child := range strings.Fields(string(children)) {
			line, _ := os.ReadFile(filepath.Join("/proc", child, "cmdline")) // it may have ended
			if pid, err := strconv.Atoi(child); err == nil && strings.Contains(string(line), text) {
				found = append(found, pid)
			}
		}
	}
	return found
}

// alive reports whether a process runs. A killed process without a wait has no command line.
func alive(pid int) bool {
	line, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
	return err == nil && len(line) > 0
}
