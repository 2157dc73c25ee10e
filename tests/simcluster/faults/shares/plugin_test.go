//go:build faults

package shares

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"

	"gpufabric.io/tests/simcluster/apiproxy"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/fixture"
)

func account(role string) string {
	return "system:serviceaccount:" + fixture.System + ":gpufabric-" + role
}

func killBeforeAllocation(s *scenario) {
	killers := s.roles()
	for _, killer := range killers {
		killer.StrikeRunning()
	}
	s.fill()
	s.waits("late")
	prove(s.t, killers...)
	s.end()
}

// killInAllocation kills both roles when the plugin makes a container's files: it has booked the share and has not answered the
// kubelet yet.
func killInAllocation(s *scenario) {
	killers := s.roles()
	stop := s.onFiles(s.random.IntN(2), func() {
		for _, killer := range killers {
			_ = killer.Strike() // the proof reports whether it did
		}
	})
	s.fill()
	s.waits("late")
	stop()
	prove(s.t, killers...)
	s.assertNoOverbooking()
	s.end()
}

// onFiles calls strike at the nth directory that the node's vgpu-plugin makes for a container, until stop is called.
func (s *scenario) onFiles(nth int, strike func()) (stop func()) {
	s.t.Helper()
	root := filepath.Join(cluster.NodeDir(shared.Dir, s.node), "r/var/lib/gpufabric/vgpu-plugin")
	for _, dir := range []string{"containers", "container-locks"} { // what the plugin makes at its first container
		if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
			s.t.Fatal(err)
		}
	}
	watcher, err := fsnotify.NewWatcher()
	if err != nil {
		s.t.Fatalf("watch the plugin's files: %v (this takes one of the user's inotify instances: see fs.inotify.max_user_instances)", err)
	}
	if err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || !entry.IsDir() {
			return err
		}
		return watcher.Add(path)
	}); err != nil {
		s.t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for event := range watcher.Events {
			if !event.Has(fsnotify.Create) || !strings.Contains(event.Name, "/container") {
				continue
			}
			if nth == 0 {
				strike()
			}
			nth--
		}
	}()
	return func() {
		_ = watcher.Close() // it only watched
		<-ended
	}
}

// killAtItsReport kills the plugin when it reports to the scheduler that a pod has its share: before the API server gets the
// report, or after.
func killAtItsReport(s *scenario) {
	killer := s.n.PluginKiller("vgpu-plugin", s.node)
	var once sync.Once
	strike := func(w apiproxy.Write) (cut bool) {
		if w.User == account("vgpu-plugin") && strings.Contains(w.Path, "/namespaces/"+s.n.Name+"/pods/") &&
			bytes.Contains(w.Body, []byte("bind-phase")) {
			once.Do(func() { cut = killer.Strike() == nil })
		}
		return cut
	}
	tap := apiproxy.Tap{Before: strike}
	if s.random.IntN(2) == 0 {
		tap = apiproxy.Tap{After: strike}
	}
	stop := writes.add(tap)
	defer stop()
	s.fill()
	s.waits("late")
	prove(s.t, killer)
	s.end()
}

// killAfterAllocation kills both roles on a full node. The pods keep their shares. The pod that waits gets none until one of
// them ends, and then it runs.
func killAfterAllocation(s *scenario) {
	s.fill()
	killers := s.roles()
	for _, killer := range killers {
		killer.StrikeRunning()
	}
	s.waits("late")
	prove(s.t, killers...)
	s.n.DeletePod(fmt.Sprint("pod-", s.random.IntN(gpus)))
	s.served("late")
	s.end()
}

// killWhilePodsEnd kills both roles in the moment in which pods are deleted.
func killWhilePodsEnd(s *scenario) {
	s.fill()
	killers := s.roles()
	var ended sync.WaitGroup
	ended.Go(func() {
		time.Sleep(time.Duration(s.random.Int64N(int64(2 * time.Second)))) // the seed's moment
		for _, killer := range killers {
			killer.StrikeRunning()
		}
	})
	for i := range gpus {
		s.n.DeletePod(fmt.Sprint("pod-", i))
	}
	ended.Wait()
	prove(s.t, killers...)
	for i := range gpus {
		s.run(fmt.Sprint("next-", i))
	}
	s.end()
}
