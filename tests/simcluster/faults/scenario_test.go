//go:build faults

package faults

import (
	"context"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/apimachinery/pkg/util/wait"

	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/domain"
	"gpufabric.io/tests/simcluster/fixture"
)

// scenario is a domain over a few nodes, with a pod with a channel on each. One node, the victim, also has a pod with a GPU, a
// pod with a MIG instance, and two pods with a NIC. The fault happens there.
//
// Each pod has only one claim from a template. With two, the controller manager of Kubernetes 1.36.3 can permanently lose one
// from the pod's status when its cache of claims is late: syncPod applies only the claims that it considers new, which removes
// the other.
type scenario struct {
	t      *testing.T
	n      *fixture.Namespace
	nodes  []int
	victim int // the node with the fault
	seed   uint64
	random *rand.Rand
	uid    string // the domain's
}

// Names of the victim's pods with a GPU, with a MIG instance, and with a NIC each.
const (
	whole  = "whole"
	slice  = "slice"
	nic    = "nic"
	second = "second-nic"
)

// onVictim are the names of the victim's pods, without the domain's member there.
func onVictim() []string { return []string{whole, slice, nic, second} }

// start makes the domain and the pods, and does not wait for them.
func (s *scenario) start() {
	s.n.Domain("d", size)
	s.uid = s.n.AwaitDomain("d", func(d domain.Domain) bool { return d.UID != "" }).UID
	s.n.Template("gpu", "gpu.nvidia.com", "")
	s.n.Template("mig", "mig.nvidia.com", "")
	s.n.Template("nic", "rdma.gpufabric.io", `device.attributes['rdma.gpufabric.io'].?pool.orValue('') == 'rdma/`+pool+`'`)
	for _, i := range s.nodes {
		s.n.ClaimPod(member(i), cluster.NodeName(i), "d-channel")
	}
	s.n.ClaimPod(whole, cluster.NodeName(s.victim), "gpu")
	s.n.ClaimPod(slice, cluster.NodeName(s.victim), "mig")
	for _, name := range []string{nic, second} {
		s.n.ClaimPod(name, cluster.NodeName(s.victim), "nic")
	}
}

// settle waits until the domain is Ready and every pod runs.
func (s *scenario) settle() {
	s.t.Helper()
	s.n.AwaitDomain("d", func(d domain.Domain) bool { return d.Status == domain.Ready && d.Ready == size })
	for _, name := range s.pods() {
		s.n.AwaitPod(name, fixture.Running)
	}
	s.assertNoTwoHolders()
}

// explain waits until the claims of the victim's pods report why they are not prepared.
func (s *scenario) explain(words ...string) {
	s.t.Helper()
	for _, pod := range append(onVictim(), member(s.victim)) {
		s.n.AwaitEvent(pod, words...)
	}
	s.assertNoTwoHolders()
}

// end deletes everything and waits until nothing remains.
func (s *scenario) end() {
	s.t.Helper()
	uids := append(s.n.ClaimUIDs(), s.uid)
	for _, name := range s.pods() {
		s.n.DeletePod(name)
	}
	s.n.DeleteDomain("d")
	s.n.AwaitNothingLeft(uids...)
	for _, i := range s.nodes {
		s.awaitNoInstances(i)
	}
}

func (s *scenario) pods() []string {
	names := onVictim()
	for _, i := range s.nodes {
		names = append(names, member(i))
	}
	return names
}

func member(i int) string { return fmt.Sprintf("member-%d", i) }

// pause waits for a random time below most.
func (s *scenario) pause(most time.Duration) { time.Sleep(time.Duration(s.random.Int64N(int64(most)))) }

var (
	channel  = regexp.MustCompile(`^/dev/nvidia-caps-imex-channels/channel\d+$`)
	wholeGPU = regexp.MustCompile(`^/dev/nvidia\d+$`)
	instance = regexp.MustCompile(`^/dev/nvidia-caps/nvidia-cap\d+$`)
	verbs    = regexp.MustCompile(`^/dev/infiniband/uverbs\d+$`)
)

// assertNoTwoHolders fails the test if two running pods of a node have the same channel, GPU, MIG instance or NIC, or if one
// has the GPU of another's MIG instance.
func (s *scenario) assertNoTwoHolders() {
	s.t.Helper()
	type holder struct {
		pod  string
		part bool // it has an instance of the GPU
	}
	holders := map[string]holder{}
	for _, pod := range s.n.RunningPods() {
		for _, container := range s.n.TryReceived(&pod) {
			part := false
			for _, device := range container.Devices {
				part = part || instance.MatchString(device.Path)
			}
			for _, device := range container.Devices {
				gpu := wholeGPU.MatchString(device.Path)
				if !gpu && !channel.MatchString(device.Path) && !instance.MatchString(device.Path) && !verbs.MatchString(device.Path) {
					continue
				}
				key := pod.Spec.NodeName + " " + device.Path
				if other, held := holders[key]; held && other.pod != pod.Name && !(gpu && part && other.part) {
					s.t.Errorf("%s is held by %s and by %s", key, other.pod, pod.Name)
				}
				holders[key] = holder{pod.Name, part}
			}
		}
	}
}

// awaitNoInstances waits until no GPU of the node has a MIG instance.
func (s *scenario) awaitNoInstances(i int) {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(s.t.Context(), fixture.Patience)
	defer cancel()
	var left []string
	err := wait.PollUntilContextCancel(ctx, 100*time.Millisecond, true, func(context.Context) (bool, error) { // hardware has no event for it
		left = instances(i)
		return len(left) == 0, nil
	})
	if err != nil {
		s.t.Errorf("these MIG instances are left on %s: %v", cluster.NodeName(i), left)
	}
}

// instances are the MIG instances of a node.
func instances(i int) []string {
	library := nvmlstate.New(filepath.Join(nodeDir(i), "f"))
	if result := library.Init(); result != nvml.SUCCESS {
		return []string{"unknown: " + result.String()}
	}
	defer library.Shutdown() //nolint:errcheck // it only reads
	count, _ := library.DeviceGetCount()
	var found []string
	for gpu := range count {
		device, _ := library.DeviceGetHandleByIndex(gpu)
		most, result := device.GetMaxMigDeviceCount()
		if result != nvml.SUCCESS {
			continue
		}
		for index := range most {
			if instance, result := device.GetMigDeviceHandleByIndex(index); result == nvml.SUCCESS {
				uuid, _ := instance.GetUUID()
				found = append(found, uuid)
			}
		}
	}
	return found
}
