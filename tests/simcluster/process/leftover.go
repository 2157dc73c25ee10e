package process

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Found is a running process of a cluster.
type Found struct {
	Pid  int
	Name string
}

func (f Found) String() string { return fmt.Sprintf("%s (pid %d)", f.Name, f.Pid) }

// List describes processes in a line. A single process of a name is given with its PID, several only with their number, since a
// cluster has a hundred.
func List(found []Found) string {
	byName := map[string][]Found{}
	var names []string // in the order in which they were found
	for _, f := range found {
		if byName[f.Name] == nil {
			names = append(names, f.Name)
		}
		byName[f.Name] = append(byName[f.Name], f)
	}
	parts := make([]string, 0, len(names))
	for _, name := range names {
		if same := byName[name]; len(same) > 1 {
			parts = append(parts, fmt.Sprintf("%d %s", len(same), name))
		} else {
			parts = append(parts, same[0].String())
		}
	}
	return strings.Join(parts, ", ")
}

// Find lists the running processes that carry clusterDir in their environment, apart from the caller.
func Find(clusterDir string) ([]Found, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil {
		return nil, fmt.Errorf("look for the cluster's processes: %w", err)
	}
	marker := []byte(MarkerEnv + "=" + clusterDir)
	var found []Found
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil || pid == os.Getpid() {
			continue
		}
		// Other users' processes cannot be read, and are not ours. Those that ended meanwhile do not matter.
		environment, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "environ"))
		if err != nil || !carries(environment, marker) {
			continue
		}
		name, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "comm"))
		if err != nil {
			continue
		}
		found = append(found, Found{Pid: pid, Name: strings.TrimSpace(string(name))})
	}
	return found, nil
}

func carries(environment, marker []byte) bool {
	for _, variable := range bytes.Split(environment, []byte{0}) {
		if bytes.Equal(variable, marker) {
			return true
		}
	}
	return false
}

// End asks every process of the cluster to end, kills what still runs after grace, and returns those it found.
func End(clusterDir string, grace time.Duration) ([]Found, error) {
	first, err := Find(clusterDir)
	if err != nil || len(first) == 0 {
		return first, err
	}
	for _, f := range first {
		_ = syscall.Kill(f.Pid, syscall.SIGTERM) // it may have ended
	}
	deadline := time.Now().Add(grace)
	for time.Now().Before(deadline) {
		if left, err := Find(clusterDir); err != nil || len(left) == 0 {
			return first, err
		}
		time.Sleep(50 * time.Millisecond) // the process may have another parent, so it cannot be waited for
	}
	left, err := Find(clusterDir)
	if err != nil {
		return first, err
	}
	for _, f := range left {
		_ = syscall.Kill(f.Pid, syscall.SIGKILL)
	}
	return first, nil
}
