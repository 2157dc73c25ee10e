package demo

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"gpufabric.io/tests/simcluster/cluster"
	"gpufabric.io/tests/simcluster/manifests"
)

// oneChannel is the manifest that shows a channel in a pod. It is removed again, since a node has one channel and the rack's
// domain takes all of them.
const oneChannel = "imex-channel-injection.yaml"

// finding is the result for one manifest.
type finding struct {
	file, result string
}

func parse(content []byte) ([]*unstructured.Unstructured, error) { return manifests.Parse(content) }

// applyManifests applies all manifests whose kinds exist, waits for the pod of oneChannel, and records the result for each.
func (d *Demo) applyManifests(ctx context.Context) error {
	files, err := filepath.Glob(filepath.Join(d.root, "examples/manifests/*.yaml"))
	if err != nil || len(files) == 0 {
		return fmt.Errorf("no manifests in %s/examples/manifests: %w", d.root, err)
	}
	for _, file := range files {
		objects, err := manifests.Read(file)
		if err != nil {
			return err
		}
		missing, err := d.manifest.Missing(objects)
		if err != nil {
			return err
		}
		name := filepath.Base(file)
		if len(missing) > 0 {
			d.findings = append(d.findings, finding{name, "not applied: the cluster has no " + strings.Join(missing, ", ")})
			continue
		}
		if err := d.manifest.Apply(ctx, "default", objects...); err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if name != oneChannel {
			d.findings = append(d.findings, finding{file: name})
			continue
		}
		result, err := d.oneChannel(ctx, objects)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		d.findings = append(d.findings, finding{name, result})
	}
	return nil
}

// oneChannel waits for the manifest's pod, shows its devices and removes it with its domain.
func (d *Demo) oneChannel(ctx context.Context, objects []*unstructured.Unstructured) (string, error) {
	pod := strings.TrimSuffix(oneChannel, ".yaml")
	if err := d.awaitPod(ctx, pod, func(event watch.Event) bool {
		p, ok := event.Object.(*corev1.Pod)
		return ok && p.Status.Phase == corev1.PodRunning
	}); err != nil {
		return "", err
	}
	containers, err := cluster.ReceivedBy(ctx, d.Dir, d.client, "default", pod)
	if err != nil {
		return "", err
	}
	var devices []string
	for _, container := range containers {
		for _, device := range container.Devices {
			devices = append(devices, device.Path)
		}
	}
	if err := d.manifest.Delete(ctx, "default", objects...); err != nil {
		return "", err
	}
	if err := d.awaitPod(ctx, pod, func(event watch.Event) bool { return event.Type == watch.Deleted }); err != nil &&
		!errors.Is(err, errNotThere) {
		return "", err
	}
	return "its pod ran with " + strings.Join(devices, ", ") + "; removed again", nil
}

var errNotThere = errors.New("it is not there")

func (d *Demo) awaitPod(ctx context.Context, name string, done func(watch.Event) bool) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	list := cache.NewListWatchFromClient(d.client.CoreV1().RESTClient(), "pods", "default", fields.OneTermEqualSelector("metadata.name", name))
	var last *corev1.Pod
	_, err := watchtools.UntilWithSync(ctx, list, &corev1.Pod{}, func(store cache.Store) (bool, error) {
		if len(store.List()) == 0 && done(watch.Event{Type: watch.Deleted}) {
			return true, errNotThere
		}
		return false, nil
	}, func(event watch.Event) (bool, error) {
		last, _ = event.Object.(*corev1.Pod)
		return done(event), nil
	})
	if err != nil && last != nil {
		return fmt.Errorf("wait for pod %s: %w; it %s", name, err, condition(last))
	}
	return err
}

// condition is what a pod waits for.
func condition(pod *corev1.Pod) string {
	if pod.Status.Phase != corev1.PodPending {
		return "is " + string(pod.Status.Phase)
	}
	for _, c := range pod.Status.Conditions {
		if c.Status == corev1.ConditionFalse && c.Message != "" {
			return "waits: " + c.Message
		}
	}
	switch {
	case pod.Spec.NodeName != "":
		return "starts on " + pod.Spec.NodeName
	case pod.Spec.SchedulerName != corev1.DefaultSchedulerName:
		return fmt.Sprintf("waits: for the scheduler %s, which does not run here", pod.Spec.SchedulerName)
	default:
		return "waits for the scheduler"
	}
}

// showFindings prints the result for each manifest, with the present state of its pods.
func (d *Demo) showFindings(ctx context.Context) error {
	fmt.Fprintln(d.Out, "\nManifests:")
	table := tabwriter.NewWriter(d.Out, 0, 0, 2, ' ', 0)
	for _, f := range d.findings {
		result := f.result
		if result == "" {
			var err error
			if result, err = d.becameOf(ctx, f.file); err != nil {
				return err
			}
		}
		fmt.Fprintf(table, "  %s\t%s\n", f.file, result)
	}
	return table.Flush()
}

func (d *Demo) becameOf(ctx context.Context, file string) (string, error) {
	objects, err := manifests.Read(filepath.Join(d.root, "examples/manifests", file))
	if err != nil {
		return "", err
	}
	var results []string
	for _, object := range objects {
		switch object.GetKind() {
		case "Pod":
			pod, err := d.client.CoreV1().Pods("default").Get(ctx, object.GetName(), metav1.GetOptions{})
			if err != nil {
				return "", fmt.Errorf("look at the pod of %s: %w", file, err)
			}
			results = append(results, fmt.Sprintf("pod %s %s", pod.Name, condition(pod)))
		default:
			results = append(results, fmt.Sprintf("%s %s accepted", object.GetKind(), object.GetName()))
		}
	}
	return strings.Join(results, "; "), nil
}

// renderedGPUs is how many GPUs a node's fake tree has.
func renderedGPUs(dir, node string) (int, error) {
	index, err := cluster.NodeIndex(node)
	if err != nil {
		return 0, err
	}
	content, err := os.ReadFile(filepath.Join(cluster.NodeDir(dir, index), "f/state/rendered.json"))
	if err != nil {
		return 0, fmt.Errorf("look at the hardware of %s: %w", node, err)
	}
	var rendered struct {
		GPUs int `json:"gpus"`
	}
	if err := json.Unmarshal(content, &rendered); err != nil {
		return 0, fmt.Errorf("look at the hardware of %s: %w", node, err)
	}
	return rendered.GPUs, nil
}
