package torture

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/uuid"
)

// watched is how long a call goes on that must not succeed. A driver that waits for the device answers at its end.
const watched = 6 * time.Second

// testCase is one thing that happens to a plugin. run returns what the plugin did; an error is its fall.
type testCase struct {
	name string
	run  func(ctx context.Context, n *node) (did string, err error)
}

func cases() []testCase {
	return []testCase{
		{"prepare and unprepare", undisturbed},
		{"kubelet and plugin restarted", restarted},
		{"unprepare of an unknown claim", unknownClaim},
		{"two claims of one name", oneName},
		{"claim deleted by force while its container runs", deletedByForce},
		{"killed at each step of prepare", killedInPrepare},
		{"killed at each step of unprepare", killedInUnprepare},
		{"API server cut off during prepare", cutInPrepare},
		{"API server cut off during unprepare", cutInUnprepare},
		{"slices deleted", slicesDeleted},
		{"node registered again", registeredAgain},
		{"node renamed", renamed},
		{"node without its driver at first", driverless},
	}
}

// Names are the cases' names.
func Names() []string {
	var names []string
	for _, c := range cases() {
		names = append(names, c.name)
	}
	return names
}

func choose(names []string) ([]testCase, error) {
	all := cases()
	if len(names) == 0 {
		return all, nil
	}
	for _, name := range names {
		if !slices.Contains(Names(), name) {
			return nil, fmt.Errorf("no case %q: the cases are %q", name, Names())
		}
	}
	return slices.DeleteFunc(all, func(c testCase) bool { return !slices.Contains(names, c.name) }), nil
}

// held starts the plugin and prepares a claim of its first device.
func (n *node) held(ctx context.Context) (*resourceapi.ResourceClaim, []string, error) {
	if err := n.up(ctx); err != nil {
		return nil, nil, err
	}
	claim, err := n.claim(ctx, "", n.devices[0])
	if err != nil {
		return nil, nil, err
	}
	ids, err := n.mustPrepare(ctx, claim)
	return claim, ids, err
}

// next gives the first device to another claim and takes it back.
func (n *node) next(ctx context.Context) error {
	claim, err := n.claim(ctx, "", n.devices[0])
	if err != nil {
		return err
	}
	if _, err := n.mustPrepare(ctx, claim); err != nil {
		return fmt.Errorf("the next claim of the device: %w", err)
	}
	return n.mustUnprepare(ctx, claim)
}

func undisturbed(ctx context.Context, n *node) (string, error) {
	claim, ids, err := n.held(ctx)
	if err != nil {
		return "", err
	}
	if err := errors.Join(n.mustUnprepare(ctx, claim), n.next(ctx)); err != nil {
		return "", err
	}
	return fmt.Sprintf("published %d devices; a claim had %d CDI devices", len(n.devices), len(ids)), nil
}

func restarted(ctx context.Context, n *node) (string, error) {
	claim, first, err := n.held(ctx)
	if err != nil {
		return "", err
	}
	for what, restart := range map[string]func(context.Context) error{"kubelet": n.connect, "plugin": n.again} {
		if err := restart(ctx); err != nil {
			return "", fmt.Errorf("after a restart of the %s: %w", what, err)
		}
		ids, err := n.mustPrepare(ctx, claim)
		if err != nil {
			return "", fmt.Errorf("after a restart of the %s: %w", what, err)
		}
		if !slices.Equal(first, ids) {
			return "", fmt.Errorf("after a restart of the %s, the claim had %v, and %v before", what, ids, first)
		}
	}
	return "registered again, and gave the prepared claim the same answer", n.mustUnprepare(ctx, claim)
}

func unknownClaim(ctx context.Context, n *node) (string, error) {
	if err := n.up(ctx); err != nil {
		return "", err
	}
	claim := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Namespace: metav1.NamespaceDefault, Name: "unknown",
		UID: uuid.NewUUID()}}
	if err := n.unprepare(ctx, claim, callTimeout); err != nil {
		return "", fmt.Errorf("the kubelet would repeat this for ever: %w", err)
	}
	return "answered without an error", nil
}

func oneName(ctx context.Context, n *node) (string, error) {
	if err := n.up(ctx); err != nil {
		return "", err
	}
	if len(n.devices) < 2 {
		return "", fmt.Errorf("%w: the node has one device", errNotApplicable)
	}
	first, err := n.claim(ctx, "same-"+n.name, n.devices[0])
	if err != nil {
		return "", err
	}
	if _, err := n.mustPrepare(ctx, first); err != nil {
		return "", err
	}
	if err := n.forget(ctx, first); err != nil {
		return "", err
	}
	second, err := n.claim(ctx, first.Name, n.devices[1])
	if err != nil {
		return "", err
	}
	ids, err := n.mustPrepare(ctx, second)
	if err != nil {
		return "", fmt.Errorf("the second claim: %w", err)
	}
	if err := n.mustUnprepare(ctx, first); err != nil {
		return "", fmt.Errorf("the first claim, after the second was prepared: %w", err)
	}
	if err := n.resolve(ids); err != nil {
		return "", fmt.Errorf("after the unprepare of the first claim: %w", err)
	}
	if err := n.again(ctx); err != nil {
		return "", err
	}
	after, err := n.mustPrepare(ctx, second)
	if err == nil && !slices.Equal(ids, after) {
		err = fmt.Errorf("had %v, and %v before", after, ids)
	}
	if err != nil {
		return "", fmt.Errorf("the second claim, after a restart: %w", err)
	}
	return "kept them apart by UID", n.mustUnprepare(ctx, second)
}

func deletedByForce(ctx context.Context, n *node) (string, error) {
	first, _, err := n.held(ctx)
	if err != nil {
		return "", err
	}
	end, err := n.runContainer(first.Status.ReservedFor[0].UID)
	if err != nil {
		return "", err
	}
	defer end() //nolint:errcheck // it is read below where it matters
	if err := n.forget(ctx, first); err != nil {
		return "", err
	}
	// The kubelets of 1.34 to 1.37 ask this within a minute, while the container runs.
	unprepared := n.unprepare(ctx, first, watched)
	second, err := n.claim(ctx, "", n.devices[0])
	if err != nil {
		return "", err
	}
	if _, err := n.prepare(ctx, second, watched); err == nil {
		return "", errors.New("gave the device to the next claim while the container of the first one runs")
	}
	did := "took the unprepare, "
	if unprepared != nil {
		did = "refused the unprepare, "
	}
	if err := end(); err != nil {
		return "", kit("end the container: %w", err)
	}
	if err := n.mustUnprepare(ctx, first); err != nil {
		return "", fmt.Errorf("after the container's end: %w", err)
	}
	if _, err := n.mustPrepare(ctx, second); err != nil {
		return "", fmt.Errorf("the next claim, after the container's end: %w", err)
	}
	return did + "and gave the device to the next claim when the container had ended", n.mustUnprepare(ctx, second)
}

// runContainer runs a process as a pod's container, in the files of a cgroup of version 2. end ends it and removes the cgroup.
func (n *node) runContainer(pod types.UID) (end func() error, err error) {
	cgroup := n.path("cgroup/kubepods/burstable/pod" + string(pod))
	container := filepath.Join(cgroup, "c0ffee")
	command := exec.Command("sh", "-c", "read nothing || true")
	input, err := command.StdinPipe() // open, so that the container waits
	if err != nil {
		return nil, kit("run a container: %w", err)
	}
	command.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := command.Start(); err != nil {
		return nil, kit("run a container: %w", err)
	}
	ended := false
	end = func() error {
		if ended {
			return nil
		}
		ended = true
		_ = input.Close() // the process ends by it
		return errors.Join(command.Wait(), os.RemoveAll(cgroup))
	}
	if err := errors.Join(os.MkdirAll(container, 0o755),
		os.WriteFile(filepath.Join(container, "cgroup.procs"), []byte(strconv.Itoa(command.Process.Pid)+"\n"), 0o600),
		os.WriteFile(filepath.Join(cgroup, "cgroup.events"), []byte("populated 1\n"), 0o600)); err != nil {
		return nil, errors.Join(kit("make the container's cgroup: %w", err), end())
	}
	return end, nil
}

func cutInPrepare(ctx context.Context, n *node) (string, error) {
	if err := n.up(ctx); err != nil {
		return "", err
	}
	claim, err := n.claim(ctx, "", n.devices[0])
	if err != nil {
		return "", err
	}
	n.link.setCut(true)
	_, err = n.prepare(ctx, claim, watched)
	did := "prepared without the API server"
	if err != nil {
		did = "answered with an error, and prepared the claim when the API server was back"
	}
	n.link.setCut(false)
	if _, err := n.mustPrepare(ctx, claim); err != nil {
		return "", fmt.Errorf("when the API server was back: %w", err)
	}
	return did, errors.Join(n.mustUnprepare(ctx, claim), n.next(ctx))
}

func cutInUnprepare(ctx context.Context, n *node) (string, error) {
	claim, _, err := n.held(ctx)
	if err != nil {
		return "", err
	}
	n.link.setCut(true)
	did := "unprepared without the API server"
	if err := n.unprepare(ctx, claim, watched); err != nil {
		did = "answered with an error, and unprepared the claim when the API server was back"
	}
	n.link.setCut(false)
	if err := n.mustUnprepare(ctx, claim); err != nil {
		return "", fmt.Errorf("when the API server was back: %w", err)
	}
	return did, n.next(ctx)
}

func slicesDeleted(ctx context.Context, n *node) (string, error) {
	if err := n.up(ctx); err != nil {
		return "", err
	}
	if err := n.deleteSlices(ctx); err != nil {
		return "", err
	}
	if err := n.awaitDevices(ctx, ""); err != nil {
		return "", err
	}
	return fmt.Sprintf("published its %d devices again", len(n.devices)), nil
}

func registeredAgain(ctx context.Context, n *node) (string, error) {
	if err := n.up(ctx); err != nil {
		return "", err
	}
	if err := errors.Join(n.unregister(ctx), n.register(ctx)); err != nil {
		return "", err
	}
	object, err := n.client.CoreV1().Nodes().Get(ctx, n.name, metav1.GetOptions{})
	if err != nil {
		return "", kit("read node %s: %w", n.name, err)
	}
	if err := n.awaitDevices(ctx, object.UID); err != nil {
		if errors.Is(err, errKit) {
			return "", err
		}
		return "", fmt.Errorf("for the Node object with the new UID: %w", err)
	}
	return "published its devices again, for the Node object with the new UID", nil
}

func renamed(ctx context.Context, n *node) (string, error) {
	first, _, err := n.held(ctx)
	if err != nil {
		return "", err
	}
	n.stop()
	if err := n.unregister(ctx); err != nil {
		return "", err
	}
	n.name += "-renamed"
	if err := n.register(ctx); err != nil {
		return "", err
	}
	if err := n.up(ctx); err != nil {
		return "", fmt.Errorf("with the new name: %w", err)
	}
	second, err := n.claim(ctx, "", n.devices[0])
	if err != nil {
		return "", err
	}
	if _, err := n.prepare(ctx, second, watched); err == nil {
		return "", errors.New("gave the device to a claim of the new pool while a claim of the old pool has it")
	}
	if err := n.mustUnprepare(ctx, first); err != nil {
		return "", fmt.Errorf("the claim from before: %w", err)
	}
	if _, err := n.mustPrepare(ctx, second); err != nil {
		return "", fmt.Errorf("the next claim of the device: %w", err)
	}
	return "published under the new name, and kept the device until the claim from before was unprepared", n.mustUnprepare(ctx, second)
}

func driverless(ctx context.Context, n *node) (string, error) {
	if !n.driver.Hardware {
		return "", fmt.Errorf("%w: the plugin needs no hardware", errNotApplicable)
	}
	there, away := n.path("n/driver"), n.path("n/away")
	if err := os.Rename(there, away); err != nil {
		return "", kit("take the driver away: %w", err)
	}
	if err := n.start(); err != nil {
		return "", err
	}
	did := "waited for the driver"
	select {
	case <-n.plugin.Exited():
		did = "ended for want of the driver"
	case <-time.After(watched):
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
	if err := os.Rename(away, there); err != nil {
		return "", kit("bring the driver: %w", err)
	}
	if err := errors.Join(n.connect(ctx), n.awaitDevices(ctx, "")); err != nil {
		return "", fmt.Errorf("%s, and then: %w", did, err)
	}
	return did + ", and published its devices when it had come", nil
}
