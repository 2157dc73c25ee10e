package hook

import (
	"sync"

	"github.com/containerd/nri/pkg/api"
)

// sandboxes are the sandboxes of each pod, by the pod's UID. The zero value is empty and ready to use.
type sandboxes struct {
	mu   sync.Mutex
	pods map[string]map[string]bool
}

func (s *sandboxes) replace(all []*api.PodSandbox) {
	s.mu.Lock()
	s.pods = nil
	s.mu.Unlock()
	for _, sandbox := range all {
		s.add(sandbox)
	}
}

func (s *sandboxes) add(sandbox *api.PodSandbox) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.pods == nil {
		s.pods = map[string]map[string]bool{}
	}
	if s.pods[sandbox.GetUid()] == nil {
		s.pods[sandbox.GetUid()] = map[string]bool{}
	}
	s.pods[sandbox.GetUid()][sandbox.GetId()] = true
}

// remove reports whether it was the pod's last one.
func (s *sandboxes) remove(sandbox *api.PodSandbox) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.pods[sandbox.GetUid()], sandbox.GetId())
	if len(s.pods[sandbox.GetUid()]) > 0 {
		return false
	}
	delete(s.pods, sandbox.GetUid())
	return true
}
