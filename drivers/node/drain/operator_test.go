package drain

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

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
			if now, so := o.followed.Await(t.Context(), func(p Pause) bool { return p.Known && p.By == PauseOf(node.Labels).By }); !so {
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

// follows lets a role see a state of the node's labels, and waits until it has followed it.
func follows(t *testing.T, o *Operator, version, by string) {
	t.Helper()
	pause := Pause{Known: true, By: by, Version: version}
	o.Pause.Set(pause)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if last, so := o.followed.Await(ctx, func(p Pause) bool { return p == pause }); !so {
		t.Fatalf("the role has followed %+v, and not %+v", last, pause)
	}
}

// roles runs two roles of a node that has no other.
func roles(t *testing.T, d Directory) (first, second *Operator) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{}, 2)
	start := func() *Operator {
		o := AllRoles(d, &observed.Value[Pause]{})
		go func() { o.Run(ctx); ended <- struct{}{} }()
		return o
	}
	first, second = start(), start()
	t.Cleanup(func() {
		cancel()
		<-ended
		<-ended
	})
	return first, second
}

func is(t *testing.T, d Directory, when string, want Phase, by string) {
	t.Helper()
	if phase, err := d.Phase(); err != nil || phase != want || d.By() != by {
		t.Errorf("%s: the node is %q for %q (%v), want %q for %q", when, phase, d.By(), err, want, by)
	}
}

const dcgm, client = deployLabels + "dcgm=paused-for-driver-upgrade", deployLabels + "client=paused-for-driver-upgrade"

// The API server sends each watch the states of a Node in their order, but not all watches at the same time.
func TestRoleThatSeesTheLabelsLateKeepsTheNextDrain(t *testing.T) {
	d := directory(t)
	prompt, late := roles(t, d)
	follows(t, prompt, "7", dcgm)
	follows(t, late, "7", dcgm)
	follows(t, prompt, "20", "")
	is(t, d, "the label is gone", None, "")
	follows(t, prompt, "21", dcgm)
	follows(t, late, "20", "")
	is(t, d, "a role sees late that the first label is gone", Draining, dcgm)
	follows(t, late, "21", dcgm)
	follows(t, late, "101", "")
	is(t, d, "the second label is gone", None, "")
	follows(t, prompt, "101", "")
	is(t, d, "both roles have seen that", None, "")
}

func TestRoleThatMissedTheEndOfALabelKeepsItsDrain(t *testing.T) {
	d := directory(t)
	prompt, late := roles(t, d)
	follows(t, prompt, "7", dcgm)
	follows(t, late, "7", dcgm)
	follows(t, prompt, "21", client) // the states in between were not sent
	follows(t, late, "20", "")
	is(t, d, "a role sees late that the first label is gone", Draining, client)
}

func TestRoleEndsTheDrainOfAnotherThatIsGone(t *testing.T) {
	d := directory(t)
	if err := errors.Join(d.make(), d.write(record{by: dcgm, version: "7"}), d.Set(Drained)); err != nil {
		t.Fatal(err)
	}
	first, _ := roles(t, d)
	follows(t, first, "20", "")
	is(t, d, "a role that never saw the label sees its end", None, "")
}

func TestDrainOfAnAdministratorOutlastsTheLabelsInEveryRole(t *testing.T) {
	d := directory(t)
	first, second := roles(t, d)
	follows(t, first, "7", dcgm)
	follows(t, second, "7", dcgm)
	if err := errors.Join(first.TakeOver(t.Context()), d.Set(Drained)); err != nil {
		t.Fatal(err)
	}
	follows(t, second, "8", client)
	follows(t, second, "9", "")
	follows(t, first, "9", "")
	is(t, d, "the labels are gone", Drained, "")
	if err := errors.Join(d.Set(None), first.Disown(t.Context())); err != nil { // gpufabric undrain
		t.Fatal(err)
	}
	follows(t, first, "10", dcgm)
	is(t, d, "the next label", Draining, dcgm)
}

func TestRoleThatSeesTheLabelsLateKeepsANodeDrained(t *testing.T) {
	d := directory(t)
	first, second := roles(t, d)
	follows(t, first, "7", dcgm)
	if err := d.Set(Drained); err != nil { // gpu-plugin, whose pods have ended
		t.Fatal(err)
	}
	follows(t, second, "7", dcgm)
	is(t, d, "the second role has seen the label", Drained, dcgm)
}

func TestOperatorNamesTheLockThatAnotherProcessKeeps(t *testing.T) {
	d := directory(t)
	ctx, cancel := context.WithCancel(t.Context())
	err := d.locked(t.Context(), func() error {
		cancel()
		return d.Disown(ctx)
	})
	if err == nil || !strings.Contains(err.Error(), operatorLock) {
		t.Errorf("%v", err)
	}
}
