package scheduling

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpufabric.io/tests/simcluster/controlplane"
)

// namespace has all pods and claims.
const namespace = "default"

// writers is how many requests go to the API server at a time.
const writers = 16

// cluster is a control plane whose nodes are only objects.
type cluster struct {
	options Options
	plane   *controlplane.ControlPlane
	client  kubernetes.Interface
	config  *rest.Config
	nodes   []string
	slices  []*resourceapi.ResourceSlice
	day     *day // of a mixed row
	made    int  // pods and claims so far, for their names
}

func start(ctx context.Context, o Options, binaries map[string]string, nodes int) (_ *cluster, err error) {
	dir := filepath.Join(o.Dir, fmt.Sprint(nodes))
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the directory of a control plane: %w", err)
	}
	c := &cluster{options: o}
	c.plane, err = controlplane.Start(ctx, controlplane.Options{Dir: dir, Binaries: binaries, SchedulerProfiling: o.CPUProfiles != ""})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			c.plane.Stop()
		}
	}()
	if c.config, err = c.plane.Admin(); err != nil {
		return nil, err
	}
	c.config.QPS, c.config.Burst = -1, -1
	c.config.ContentType = "application/vnd.kubernetes.protobuf"
	if c.client, err = kubernetes.NewForConfig(c.config); err != nil {
		return nil, fmt.Errorf("make a client: %w", err)
	}
	if err := controlplane.AwaitDefaultAccount(ctx, c.client, namespace); err != nil {
		return nil, err
	}
	// It would count the nodes as lost, and deallocate claims whose pods it does not know.
	c.plane.Process("kube-controller-manager").Stop(2 * time.Second)
	plenty := corev1.ResourceList{
		corev1.ResourcePods: resource.MustParse("5000"), corev1.ResourceCPU: resource.MustParse("1000"),
		corev1.ResourceMemory: resource.MustParse("4Ti"),
	}
	for i := range nodes {
		c.nodes = append(c.nodes, nodeName(i))
	}
	if err := each(c.nodes, func(name string) error {
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{corev1.LabelHostname: name}}}
		made, err := c.client.CoreV1().Nodes().Create(ctx, n, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		made.Spec.Taints = nil // "not ready", which admission adds and the controller manager would remove
		if made, err = c.client.CoreV1().Nodes().Update(ctx, made, metav1.UpdateOptions{}); err != nil {
			return err
		}
		made.Status = corev1.NodeStatus{Capacity: plenty, Allocatable: plenty,
			Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}
		_, err = c.client.CoreV1().Nodes().UpdateStatus(ctx, made, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return nil, fmt.Errorf("make the nodes: %w", err)
	}
	names := []string{classWhole, classMIG, classShare, classOther}
	for _, shape := range mixShapes[:len(mixShapes)-1] {
		names = append(names, classProfile+shape)
	}
	for _, name := range names {
		if _, err := c.client.ResourceV1().DeviceClasses().Create(ctx, deviceClass(name), metav1.CreateOptions{}); err != nil {
			return nil, fmt.Errorf("make the class %s: %w", name, err)
		}
	}
	return c, nil
}

// each does something for every item, several at a time, and returns the first error of each worker.
func each[T any](items []T, do func(T) error) error {
	queue := make(chan T)
	errs := make([]error, writers)
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for item := range queue {
				if errs[w] == nil {
					errs[w] = do(item)
				}
			}
		})
	}
	for _, item := range items {
		queue <- item
	}
	close(queue)
	wg.Wait()
	return errors.Join(errs...)
}

// publish replaces all slices by a row's, and restarts the scheduler, so that its state of the last row does not affect this
// one.
func (c *cluster) publish(ctx context.Context, m *Machine, row Row, fill float64) error {
	if err := c.client.ResourceV1().ResourceSlices().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		return err
	}
	c.slices, c.day = nil, nil
	if row.mix {
		c.day = newDay(m, len(c.nodes), fill)
	}
	gone := make([][]unit, len(c.nodes))
	if row.withdrawn {
		gone, _ = c.given(m, row, fill)
	}
	for i, name := range c.nodes {
		c.slices = append(c.slices, slicesOf(name, without(row.pools(m, c.day, i), gone[i]))...)
	}
	if err := each(c.slices, func(s *resourceapi.ResourceSlice) error {
		_, err := c.client.ResourceV1().ResourceSlices().Create(ctx, s, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	return c.plane.Restart(ctx, "kube-scheduler")
}

// warmPatience is how long a scheduler may take to read a cluster and bind a pod.
const warmPatience = 3 * time.Minute

// ticks is the number of clock ticks of processor time in a second (USER_HZ, which is 100 on every Linux that Go runs on).
const ticks = 100
