package cards

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/vgpu/annotation"
)

// The tables here were written by hand from the documentation of Volcano's deviceshare plugin: its predicates and its scores. Their
// values are literals on purpose; the code under test computes none of them.

var volcano = annotation.Resources{Number: "volcano.sh/vgpu-number", Memory: "volcano.sh/vgpu-memory", Cores: "volcano.sh/vgpu-cores",
	Percentage: "volcano.sh/vgpu-memory-percentage"}

// uuid is the UUID of GPU i.
func uuid(i int) string { return fmt.Sprintf("GPU-%08d-0000-0000-0000-000000000000", i) }

// l40s is an idle GPU of the seed's machine: 49140 MiB in units of 10 MiB, split in 10.
func l40s(i int) Card {
	return Card{GPU: annotation.GPU{UUID: uuid(i), Slots: 10, Memory: 4914, Model: "L40S", Healthy: true, Mode: annotation.ModeSoftware}}
}

func used(card Card, sharers int, memory int64, cores int) Card {
	card.Sharers, card.MemoryUsed, card.CoresUsed = sharers, memory, cores
	return card
}

// pod requests number, memory and cores in one container; a negative amount is left out.
func pod(annotations map[string]string, amounts ...[3]int64) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Annotations: annotations}}
	for i, amount := range amounts {
		limits := corev1.ResourceList{}
		for j, name := range []string{volcano.Number, volcano.Memory, volcano.Cores} {
			if amount[j] >= 0 {
				limits[corev1.ResourceName(name)] = *resource.NewQuantity(amount[j], resource.DecimalSI)
			}
		}
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{Name: fmt.Sprintf("c%d", i),
			Resources: corev1.ResourceRequirements{Limits: limits}})
	}
	return p
}

func TestPredicates(t *testing.T) {
	sick, mig, other, sibling := l40s(0), l40s(0), l40s(0), used(l40s(0), 1, 1, 0)
	sibling.Sibling = true
	sick.Healthy = false
	mig.Mode = annotation.ModeMIG
	other.Model = "A100-SXM4-40GB"
	for _, test := range []struct {
		name  string
		node  Node
		pod   *corev1.Pod
		wrong string // part of the refusal, empty where it fits
	}{
		{"an idle GPU gives a share", Node{l40s(0)}, pod(nil, [3]int64{1, 1024, 30}), ""},
		{"as many GPUs as there are", Node{l40s(0), l40s(1)}, pod(nil, [3]int64{2, 1024, 0}), ""},
		{"one more GPU than there are", Node{l40s(0), l40s(1)}, pod(nil, [3]int64{3, 1024, 0}), "requests 3 GPUs, and 2 of 2 are suitable"},
		{"the last place of a GPU", Node{used(l40s(0), 9, 900, 9)}, pod(nil, [3]int64{1, 100, 1}), ""},
		{"no place is left", Node{used(l40s(0), 10, 900, 9)}, pod(nil, [3]int64{1, 100, 1}), "1 shared by as many as it may be"},
		{"exactly the memory that is left", Node{used(l40s(0), 1, 3890, 0)}, pod(nil, [3]int64{1, 1024, 0}), ""},
		{"one unit more than is left", Node{used(l40s(0), 1, 3891, 0)}, pod(nil, [3]int64{1, 1024, 0}), "1 without the memory left"},
		{"more memory than a GPU has", Node{l40s(0)}, pod(nil, [3]int64{1, 4915, 0}), "1 smaller than the memory asked for"},
		{"no memory named is all of a GPU's", Node{l40s(0)}, pod(nil, [3]int64{1, -1, -1}), ""},
		{"no memory named and a GPU in use", Node{used(l40s(0), 1, 1, 0)}, pod(nil, [3]int64{1, -1, -1}), "1 without the memory left"},
		{"cores up to 100 together", Node{used(l40s(0), 1, 1, 70)}, pod(nil, [3]int64{1, 1, 30}), ""},
		{"cores over 100 together", Node{used(l40s(0), 1, 1, 71)}, pod(nil, [3]int64{1, 1, 30}), "1 without the cores left"},
		{"all cores of an idle GPU", Node{l40s(0)}, pod(nil, [3]int64{1, 1, 100}), ""},
		{"all cores of a GPU whose one sharer names none", Node{used(l40s(0), 1, 1, 0)}, pod(nil, [3]int64{1, 1, 100}),
			"1 shared, where all cores are wanted"},
		{"no cores named on a GPU that is somebody's alone", Node{used(l40s(0), 1, 1, 100)}, pod(nil, [3]int64{1, 1, 0}),
			"1 without the cores left"},
		{"no cores named on a GPU with some given away", Node{used(l40s(0), 1, 1, 99)}, pod(nil, [3]int64{1, 1, 0}), ""},
		{"an unhealthy GPU", Node{sick}, pod(nil, [3]int64{1, 1, 0}), "1 unhealthy"},
		{"a GPU that is cut", Node{mig}, pod(nil, [3]int64{1, 1, 0}), "1 cut into MIG instances"},
		{"another pod of the group on one of two GPUs", Node{sibling, l40s(1)}, pod(nil, [3]int64{2, 1, 0}), "1 of another pod of its PodGroup"},
		{"mode hami-core is software", Node{l40s(0)}, pod(map[string]string{"volcano.sh/vgpu-mode": "hami-core"}, [3]int64{1, 1, 0}), ""},
		{"mode mig on a GPU that is not cut", Node{l40s(0)}, pod(map[string]string{"volcano.sh/vgpu-mode": "mig"}, [3]int64{1, 1, 0}),
			"1 not cut into MIG instances"},
		{"a list of UUIDs with the GPU", Node{l40s(0)}, pod(map[string]string{"volcano.sh/vgpu-use-gpuuuid": "GPU-1, " + uuid(0)},
			[3]int64{1, 1, 0}), ""},
		{"a list of UUIDs without it", Node{l40s(0)}, pod(map[string]string{"volcano.sh/vgpu-use-gpuuuid": uuid(1)}, [3]int64{1, 1, 0}),
			"1 excluded by the pod's list of UUIDs"},
		{"the GPU is to be avoided", Node{l40s(0)}, pod(map[string]string{"volcano.sh/vgpu-nouse-gpuuuid": uuid(0)}, [3]int64{1, 1, 0}),
			"1 excluded by the pod's list of UUIDs"},
		{"the model that is wanted", Node{other}, pod(map[string]string{"nvidia.com/use-gputype": "l40s,a100"}, [3]int64{1, 1, 0}), ""},
		{"not the model that is wanted", Node{other}, pod(map[string]string{"nvidia.com/use-gputype": "L40S"}, [3]int64{1, 1, 0}),
			"1 of a model that the pod excludes"},
		{"the model to be avoided", Node{other}, pod(map[string]string{"nvidia.com/nouse-gputype": "A100"}, [3]int64{1, 1, 0}),
			"1 of a model that the pod excludes"},
		{"two containers share one GPU", Node{l40s(0)}, pod(nil, [3]int64{1, 2457, 50}, [3]int64{1, 2457, 50}), ""},
		{"a second container too many", Node{l40s(0)}, pod(nil, [3]int64{1, 2457, 50}, [3]int64{1, 2458, 50}), "container c1 requests 1"},
		{"each reason is counted", Node{sick, used(l40s(1), 10, 0, 0), used(l40s(2), 10, 0, 0)}, pod(nil, [3]int64{1, 1, 0}),
			"0 of 3 are suitable: 1 unhealthy, 2 shared by as many as it may be"},
	} {
		t.Run(test.name, func(t *testing.T) {
			wish, err := Read(test.pod, volcano, Policies{Binpack, Binpack})
			if err != nil {
				t.Fatal(err)
			}
			_, err = test.node.Place(wish)
			if test.wrong == "" && err != nil {
				t.Errorf("refused: %v", err)
			}
			if test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)) {
				t.Errorf("error %v, want one with %q", err, test.wrong)
			}
		})
	}
}

func TestMistakesAreNamedBeforeAnyNodeIsLookedAt(t *testing.T) {
	for name, test := range map[string]struct {
		pod  *corev1.Pod
		part string
	}{
		"cores without number":   {pod(nil, [3]int64{-1, -1, 30}), "volcano.sh/vgpu-cores: 30 without volcano.sh/vgpu-number"},
		"cores over 100":         {pod(nil, [3]int64{1, 1, 101}), "volcano.sh/vgpu-cores: 101, where at most 100"},
		"a number beyond reason": {pod(nil, [3]int64{1 << 40, 1, 0}), "at most 64"},
		"an unknown mode":        {pod(map[string]string{"volcano.sh/vgpu-mode": "mps"}, [3]int64{1, 1, 0}), `"mps", where hami-core and mig`},
		"an unknown group policy": {pod(map[string]string{"volcano.sh/vgpu-podgroup-policy": "pack"}, [3]int64{1, 1, 0}),
			`"pack", where spread is allowed`},
		"an unknown card policy": {pod(map[string]string{CardPolicyAnnotation: "best"}, [3]int64{1, 1, 0}),
			`card policy "best", where binpack, spread, numa and nvlink`},
		"NUMA is no node's order": {pod(map[string]string{NodePolicyAnnotation: "numa"}, [3]int64{1, 1, 0}),
			`node policy "numa", where binpack and spread`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := Read(test.pod, volcano, Policies{Binpack, Binpack}); err == nil || !strings.Contains(err.Error(), test.part) {
				t.Errorf("error %v, want one with %q", err, test.part)
			}
		})
	}
	if wish, err := Read(pod(nil, [3]int64{-1, -1, -1}), volcano, Policies{Binpack, Binpack}); wish != nil || err != nil {
		t.Errorf("a pod without shares gives %v, %v", wish, err)
	}
}

func TestScores(t *testing.T) {
	idle, half, full := l40s(0), used(l40s(1), 5, 2457, 0), used(l40s(2), 9, 4913, 0)
	share := func(i int) []annotation.Share { return []annotation.Share{{UUID: uuid(i), Memory: 1}} }
	for _, test := range []struct {
		name   string
		policy Policy
		shares [][]annotation.Share
		want   int64
	}{
		{"binpack: an idle GPU", Binpack, [][]annotation.Share{share(0)}, 0},
		{"binpack: half the memory is given away", Binpack, [][]annotation.Share{share(1)}, 50},
		{"binpack: nearly all of it", Binpack, [][]annotation.Share{share(2)}, 100}, // 4913 of 4914
		{"binpack: the mean of an idle and a half full one", Binpack, [][]annotation.Share{share(0), nil, share(1)}, 25},
		{"spread: nobody shares it yet", Spread, [][]annotation.Share{share(0)}, 100},
		{"spread: 5 of 10 share it", Spread, [][]annotation.Share{share(1)}, 50},
		{"spread: 9 of 10 share it", Spread, [][]annotation.Share{share(2)}, 10},
		{"nothing chosen", Spread, nil, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := (Node{idle, half, full}).Score(test.shares, test.policy); got != test.want {
				t.Errorf("score %d, want %d", got, test.want)
			}
		})
	}
}

func TestChoice(t *testing.T) {
	near := func(card Card, nvlink, numa, pcie string) Card {
		card.Near = Near{nvlink, numa, pcie}
		return card
	}
	// Two NUMA nodes of two switches each; GPUs 1 and 4 are joined by NVLink across them, and so are 5, 6 and 7.
	board := func() Node {
		return Node{
			near(l40s(0), "", "0", "a"), near(l40s(1), "x", "0", "a"), near(l40s(2), "", "0", "b"), near(l40s(3), "", "0", "b"),
			near(l40s(4), "x", "1", "c"), near(l40s(5), "y", "1", "c"), near(l40s(6), "y", "1", "d"), near(l40s(7), "y", "1", "d"),
		}
	}
	busy := func(i int, sharers int, memory int64) Node {
		n := board()
		n[i] = used(n[i], sharers, memory, 0)
		return n
	}
	for _, test := range []struct {
		name   string
		node   Node
		policy Policy
		number int64
		want   []int
	}{
		{"binpack takes the fullest", busy(3, 1, 500), Binpack, 1, []int{3}},
		{"binpack takes the first of equals", board(), Binpack, 2, []int{0, 1}},
		{"binpack passes a GPU over that is too full", busy(3, 1, 4914), Binpack, 1, []int{0}},
		{"spread takes one with fewest sharers", busy(0, 1, 1), Spread, 1, []int{1}},
		{"numa stays below one switch", board(), NUMA, 2, []int{0, 1}},
		{"numa takes the switch that still has two", busy(0, 1, 4914), NUMA, 2, []int{2, 3}},
		{"numa stays on one NUMA node", board(), NUMA, 3, []int{0, 1, 2}},
		{"numa leaves the larger group whole", busy(6, 1, 4914), NUMA, 3, []int{4, 5, 7}},
		{"numa takes what there is for five", board(), NUMA, 5, []int{0, 1, 2, 3, 4}},
		{"nvlink takes two of one domain below one switch", board(), NVLink, 2, []int{6, 7}},
		{"nvlink goes before NUMA", busy(6, 1, 4914), NVLink, 2, []int{5, 7}},
		{"nvlink takes three of one domain", board(), NVLink, 3, []int{5, 6, 7}},
		{"nvlink without a domain of four stays on one NUMA node", board(), NVLink, 4, []int{0, 1, 2, 3}},
		{"nvlink for one GPU packs", busy(2, 1, 100), NVLink, 1, []int{2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			wish, err := Read(pod(nil, [3]int64{test.number, 1000, 0}), volcano, Policies{Binpack, test.policy})
			if err != nil {
				t.Fatal(err)
			}
			shares, err := test.node.Place(wish)
			if err != nil {
				t.Fatal(err)
			}
			var want []annotation.Share
			for _, i := range test.want {
				want = append(want, annotation.Share{UUID: uuid(i), Memory: 1000})
			}
			if diff := cmp.Diff([][]annotation.Share{want}, shares); diff != "" {
				t.Errorf("shares (-want +got):\n%s", diff)
			}
		})
	}
}

func TestInitContainersComeFirstWhenOneHasARequest(t *testing.T) {
	p := pod(nil, [3]int64{1, 10, 0}, [3]int64{-1, -1, -1})
	read := func() [][]annotation.Share {
		wish, err := Read(p, volcano, Policies{Binpack, Binpack})
		if err != nil {
			t.Fatal(err)
		}
		shares, err := Node{l40s(0)}.Place(wish)
		if err != nil {
			t.Fatal(err)
		}
		return shares
	}
	p.Spec.InitContainers = []corev1.Container{{Name: "plain"}}
	if got, want := annotation.FormatShares(read()), uuid(0)+",NVIDIA,10,0:;;"; got != want {
		t.Errorf("an init container that asks for nothing: %s, want %s", got, want)
	}
	p.Spec.InitContainers = pod(nil, [3]int64{1, 20, 5}).Spec.Containers
	if got, want := annotation.FormatShares(read()), uuid(0)+",NVIDIA,20,5:;"+uuid(0)+",NVIDIA,10,0:;;"; got != want {
		t.Errorf("an init container that asks: %s, want %s", got, want)
	}
}

func TestShareOfAnInitContainerIsFreeWhenItHasEnded(t *testing.T) {
	const init, sidecar = "", corev1.ContainerRestartPolicyAlways
	for _, test := range []struct {
		name         string
		policy       corev1.ContainerRestartPolicy
		inits, units [][3]int64 // number, memory, cores of each
		wrong        string
		sharers      int
		memory       int64
		cores        int
	}{
		{"smaller than what follows", init, [][3]int64{{1, 1000, 10}}, [][3]int64{{1, 3000, 50}}, "", 1, 3000, 50},
		{"larger than what follows", init, [][3]int64{{1, 4000, 60}}, [][3]int64{{1, 3000, 50}}, "", 1, 4000, 60},
		{"two after each other, more of each in another", init, [][3]int64{{1, 4000, 10}, {1, 1000, 90}},
			[][3]int64{{1, 1500, 20}, {1, 1500, 20}}, "", 2, 4000, 90},
		{"the whole GPU, and then all its cores", init, [][3]int64{{1, 4914, 100}}, [][3]int64{{1, 1, 100}}, "", 1, 4914, 100},
		{"more than the GPU has", init, [][3]int64{{1, 4915, 0}}, [][3]int64{{1, 1, 0}}, "smaller than the memory asked for", 0, 0, 0},
		{"one that stays is added", sidecar, [][3]int64{{1, 1000, 10}}, [][3]int64{{1, 3000, 50}}, "", 2, 4000, 60},
		{"one that stays leaves too little", sidecar, [][3]int64{{1, 2000, 10}}, [][3]int64{{1, 3000, 50}}, "without the memory left", 0, 0, 0},
	} {
		t.Run(test.name, func(t *testing.T) {
			p := pod(nil, test.units...)
			p.Spec.InitContainers = pod(nil, test.inits...).Spec.Containers
			for i := range p.Spec.InitContainers {
				if test.policy != init {
					p.Spec.InitContainers[i].RestartPolicy = &test.policy
				}
			}
			wish, err := Read(p, volcano, Policies{Binpack, Binpack})
			if err != nil {
				t.Fatal(err)
			}
			placed, booked := Node{l40s(0)}, Node{l40s(0)}
			shares, err := placed.Place(wish)
			if test.wrong != "" {
				if err == nil || !strings.Contains(err.Error(), test.wrong) {
					t.Errorf("error %v, want one with %q", err, test.wrong)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			booked.Book(shares, Before(p, len(shares))) // as another pod's cycle reads it from the annotation
			want := Node{used(l40s(0), test.sharers, test.memory, test.cores)}
			if diff := cmp.Diff(want, placed); diff != "" {
				t.Errorf("when placed (-want +got):\n%s", diff)
			}
			if diff := cmp.Diff(want, booked); diff != "" {
				t.Errorf("when read again (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPodsOfAGroupThatIsSpreadAreSiblings(t *testing.T) {
	member := func(namespace, group, policy string) *corev1.Pod {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Annotations: map[string]string{}}}
		for key, value := range map[string]string{"scheduling.k8s.io/group-name": group, "volcano.sh/vgpu-podgroup-policy": policy} {
			if value != "" {
				p.Annotations[key] = value
			}
		}
		return p
	}
	for _, test := range []struct {
		name       string
		pod, other *corev1.Pod
		want       bool
	}{
		{"of one group", member("a", "g", "spread"), member("a", "g", "spread"), true},
		{"the other does not say so", member("a", "g", "spread"), member("a", "g", ""), true},
		{"it does not say so itself", member("a", "g", ""), member("a", "g", "spread"), false},
		{"of another group", member("a", "g", "spread"), member("a", "h", "spread"), false},
		{"of another namespace", member("a", "g", "spread"), member("b", "g", "spread"), false},
		{"of no group", member("a", "", "spread"), member("a", "", "spread"), false},
	} {
		if got := Siblings(test.pod, test.other); got != test.want {
			t.Errorf("%s: %t", test.name, got)
		}
	}
	node := Node{l40s(0), l40s(1)}
	node.Mark([][]annotation.Share{nil, {{UUID: uuid(1)}}})
	if node[0].Sibling || !node[1].Sibling {
		t.Errorf("marked %t and %t, want the second alone", node[0].Sibling, node[1].Sibling)
	}
}

func TestMemoryWithoutANumberIsOneGPUs(t *testing.T) {
	w, err := Read(pod(nil, [3]int64{-1, 1024, -1}), volcano, Policies{Binpack, Binpack})
	if err != nil || len(w.Requests) != 1 || w.Requests[0].Number != 1 || w.Requests[0].Memory != 1024 {
		t.Errorf("got %+v (%v), want one GPU of 1024 units", w, err)
	}
}

func TestPodGroupIsNamedByEitherOfVolcanosKeys(t *testing.T) {
	named := func(key string) *corev1.Pod {
		return pod(map[string]string{key: "train", annotation.PodGroup: "spread"}, [3]int64{1, 1, 0})
	}
	for _, other := range []string{"scheduling.k8s.io/group-name", "scheduling.volcano.sh/group-name"} {
		if !Siblings(named("scheduling.volcano.sh/group-name"), named(other)) {
			t.Errorf("a pod named by %s is no sibling", other)
		}
	}
	if Siblings(named("scheduling.volcano.sh/group-name"), named("another.example/group-name")) {
		t.Error("a pod of no group is a sibling")
	}
}
