package object

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// Origin is one process of the provider, and the creations that it has under way. An object that a killed process created and no
// state records is adopted by the next process of the same machine, working directory and workspace, and by no other.
type Origin struct {
	place string // identifies machine, directory and workspace
	pid   int
	alive func(pid int) bool

	mu      sync.Mutex
	running map[string]bool // owners whose creation is under way
}

// NewOrigin returns the origin of this process, which Terraform starts in its working directory.
func NewOrigin() *Origin {
	dir, _ := os.Getwd() // empty in a directory that was deleted
	return newOrigin(Machine()+"\x00"+dir+"\x00"+workspace(dir), os.Getpid(), Alive)
}

// Machine returns a name of this machine and, on Linux, of the namespace of its process ids: only there a process id reports whether a
// process runs.
func Machine() string {
	host, _ := os.Hostname()                         // empty on a machine without a name
	namespace, _ := os.Readlink("/proc/self/ns/pid") // there on Linux only
	return strings.TrimSpace(host + " " + namespace)
}

func newOrigin(place string, pid int, alive func(pid int) bool) *Origin {
	sum := sha256.Sum256([]byte(place))
	return &Origin{place: hex.EncodeToString(sum[:8]), pid: pid, alive: alive, running: map[string]bool{}}
}

// workspace returns the workspace that Terraform has selected for a directory; empty for the default one.
func workspace(dir string) string {
	if name := os.Getenv("TF_WORKSPACE"); name != "" {
		return name
	}
	data := os.Getenv("TF_DATA_DIR")
	if data == "" {
		data = filepath.Join(dir, ".terraform")
	}
	name, err := os.ReadFile(filepath.Join(data, "environment"))
	if err != nil {
		return "" // Terraform writes the file with the first workspace other than default
	}
	return strings.TrimSpace(string(name))
}

// Begin returns the value of CreationAnnotation for a creation by an owner, and its end.
func (o *Origin) Begin(owner string) (mark string, end func()) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.running[owner] = true
	return fmt.Sprintf("%s.%d.%s", o.place, o.pid, owner), func() {
		o.mu.Lock()
		defer o.mu.Unlock()
		delete(o.running, owner)
	}
}

// Abandoned reports whether a mark was made in this place by a creation that has ended without removing it.
func (o *Origin) Abandoned(mark string) bool {
	parts := strings.SplitN(mark, ".", 3)
	if len(parts) != 3 || parts[0] != o.place {
		return false
	}
	pid, err := strconv.Atoi(parts[1])
	if err != nil {
		return false
	}
	if pid != o.pid {
		return !o.alive(pid)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return !o.running[parts[2]]
}
