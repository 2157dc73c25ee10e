package cards

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// percentage requests a share of one GPU by percent of its memory, and also an amount unless that is negative.
func percentage(percent, memory int64) *corev1.Pod {
	p := pod(nil, [3]int64{1, memory, -1})
	p.Spec.Containers[0].Resources.Limits[corev1.ResourceName(volcano.Percentage)] = *resource.NewQuantity(percent, resource.DecimalSI)
	return p
}

// Volcano gives whole units, rounded down, and an amount takes precedence.
func TestMemoryIsGivenByPercent(t *testing.T) {
	small := l40s(0)
	small.Memory = 48 // units of 1 GiB
	for _, test := range []struct {
		name   string
		card   Card
		pod    *corev1.Pod
		memory int64
		wrong  string
	}{
		{"half of 4914", l40s(0), percentage(50, -1), 2457, ""},
		{"a third is rounded down", l40s(0), percentage(33, -1), 1621, ""},
		{"all of it", l40s(0), percentage(100, -1), 4914, ""},
		{"an amount comes first", l40s(0), percentage(50, 100), 100, ""},
		{"more than is left", used(l40s(0), 1, 2458, 0), percentage(50, -1), 0, "1 without the memory left"},
		{"less than a unit", small, percentage(2, -1), 0, "1 so small that the percentage asked for is less than a unit"},
		{"more than everything", l40s(0), percentage(101, -1), 0, "at most 100 is allowed"},
	} {
		t.Run(test.name, func(t *testing.T) {
			wish, err := Read(test.pod, volcano, Policies{Node: Binpack, Card: Binpack})
			if err != nil {
				if test.wrong == "" || !strings.Contains(err.Error(), test.wrong) {
					t.Error(err)
				}
				return
			}
			node := Node{test.card}
			given, err := node.Place(wish)
			switch {
			case test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)):
				t.Errorf("got %v, want %q", err, test.wrong)
			case test.wrong == "" && (err != nil || len(given) != 1 || given[0][0].Memory != test.memory):
				t.Errorf("got %v, %v; want %d units", given, err, test.memory)
			}
		})
	}
}
