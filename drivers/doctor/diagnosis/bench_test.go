package diagnosis_test

import (
	"context"
	"fmt"
	"testing"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/doctor/snapshot"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/rdma/apiservertest"
)

// BenchmarkDoctor measures the doctor before a real API server with the objects of 18 and of 1,008 healthy nodes: Nodes, Leases, the
// plugins' pods, ResourceSlices, on each node a running pod with two GPUs, and a pod that asks for too many. No kubelet, scheduler or
// plugin runs. `make bench-doctor`.
func BenchmarkDoctor(b *testing.B) {
	for _, nodes := range []int{18, 1008} {
		b.Run(fmt.Sprintf("%d nodes", nodes), func(b *testing.B) {
			config := apiservertest.Start(b, "../../api/crds")
			kinds, err := snapshot.Scheme()
			if err != nil {
				b.Fatal(err)
			}
			c, err := client.New(config, client.Options{Scheme: kinds})
			if err != nil {
				b.Fatal(err)
			}
			g := &ground{t: b, client: c, config: config}
			g.rack(nodes)
			for _, subject := range []diagnosis.Subject{install(), onNode(nodeName(nodes / 2)), ofPod("job-0"), ofPod("waiting")} {
				b.Run(subject.String(), func(b *testing.B) {
					g.t = b
					var r *diagnosis.Report
					for b.Loop() {
						r = g.ask(subject)
					}
					// The pod that waits is the installation's only trouble.
					if waits := subject.Name == "waiting" || subject.Kind == diagnosis.Install; (r.First != nil) != waits ||
						waits && r.First.Code != "DevicesTooFew" {
						b.Errorf("%s: found %+v", subject, r.First)
					}
					b.ReportMetric(float64(r.Server.Requests), "requests/op")
				})
			}
		})
	}
}

// rack puts a healthy cluster of this many nodes into the API server.
func (g *ground) rack(nodes int) {
	g.t.Helper()
	g.furnish(int32(nodes)) //nolint:gosec // a thousand
	group, ctx := errgroup.WithContext(g.t.Context())
	group.SetLimit(8)
	for i := range nodes {
		group.Go(func() error { return g.populate(ctx, i) })
	}
	if err := group.Wait(); err != nil {
		g.t.Fatal(err)
	}
	g.create(claim("waiting", "gpu.nvidia.com", 9))
	g.create(pod("waiting", "", "waiting"))
}

// populate is one node of a rack, with a pod that runs.
func (g *ground) populate(ctx context.Context, i int) error {
	name, job := nodeName(i), fmt.Sprintf("job-%d", i)
	objects := append(gpuSlices(name, "whole", nil), lease(name, 0), channelSlice(name, ""), nicSlice(name, nil),
		allocated(claim(job, "gpu.nvidia.com", 2), devices.Driver, devices.PoolName(name), "gpu-0", "gpu-1"))
	for _, component := range []string{"gpu-plugin", "compute-domain-plugin", "rdma-plugin"} {
		objects = append(objects, pluginPod(component, name))
	}
	p := pod(job, name, job)
	p.Status.Phase = corev1.PodRunning
	p.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
	n := node(name)
	for _, o := range append(objects, p, n) {
		if err := g.tryCreate(ctx, o); err != nil {
			return err
		}
	}
	n.Spec.Taints = nil // the API server's, until the node controller finds the node ready
	if err := g.client.Update(ctx, n); err != nil {
		return fmt.Errorf("take the taint from node %s: %w", name, err)
	}
	return nil
}
