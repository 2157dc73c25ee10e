package drain

import (
	"context"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"gpufabric.io/drivers/node/observed"
)

func TestPauseOfNamesTheLabelThatPausesAClient(t *testing.T) {
	for _, c := range []struct{ key, value, want string }{
		{"nvidia.com/gpu.deploy.client", "paused-for-driver-upgrade", "nvidia.com/gpu.deploy.client=paused-for-driver-upgrade"},
		{"nvidia.com/gpu.deploy.dcgm", "paused-for-mig-change", "nvidia.com/gpu.deploy.dcgm=paused-for-mig-change"},
		{"nvidia.com/gpu.deploy.dcgm", "mine_paused-for-driver-upgrade", "nvidia.com/gpu.deploy.dcgm=mine_paused-for-driver-upgrade"},
		{"nvidia.com/gpu.deploy.driver", "true", ""},
		{"nvidia.com/gpu.deploy.device-plugin", "false", ""}, // an administrator's choice, who takes clients off for good
		{"nvidia.com/gpu.deploy.driver", "pre-installed", ""},
		{"example.com/state", "paused-for-driver-upgrade", ""},
	} {
		if got := PauseOf(map[string]string{"zone": "a", c.key: c.value}); got != (Pause{Known: true, By: c.want}) {
			t.Errorf("%s=%s: %+v", c.key, c.value, got)
		}
	}
}

// Two roles of a node follow the same labels: each may be the first, and the last.
func TestRolesOfANodeCloseNVMLWhileALabelPausesThem(t *testing.T) {
	d := directory(t)
	stands := make(chan struct{}, 10)
	uses, _ := run(t, d, "compute-domain-plugin", stands)
	expect(t, uses, true)
	client := fake.NewClientset(
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{deployLabels + "dcgm": "true"}}},
		&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n2", Labels: map[string]string{deployLabels + "dcgm": "paused-for-driver-upgrade"}}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 4)
	var operators []*Operator
	for range 2 {
		o := AllRoles(d, &observed.Value[Pause]{})
		operators = append(operators, o)
		go func() { ended <- WatchPause(ctx, client, "n1", o.Pause) }()
		go func() { o.Run(ctx); ended <- nil }()
	}
	defer func() {
		cancel()
		for range 4 {
			if err := <-ended; err != nil {
				t.Error(err)
			}
		}
	}()
	label := func(value string) {
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1", Labels: map[string]string{deployLabels + "dcgm": value}}}
		if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		// A role that has not followed one label yet undoes what another role has done for the next.
		for _, o := range operators {
			if now, so := o.followed.Await(t.Context(), func(p Pause) bool { return p == PauseOf(node.Labels) }); !so {
				t.Fatalf("a role has followed %+v", now)
			}
		}
	}
	for range 3 {
		label("paused-for-driver-upgrade")
		stands <- struct{}{}
		expect(t, uses, false)
		holders(t, d, "")
		if by := d.By(); by != deployLabels+"dcgm=paused-for-driver-upgrade" {
			t.Errorf("the drain is for %q", by)
		}
		label("true")
		expect(t, uses, true)
	}
	if err := d.Set(Drained); err != nil { // an administrator
		t.Fatal(err)
	}
	stands <- struct{}{}
	expect(t, uses, false)
	label("paused-for-driver-upgrade")
	label("true")
	select {
	case <-uses:
		t.Error("labels end a drain of an administrator")
	default:
	}
}
