package controllers

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
)

// neighbour is a controller of other kinds that runs in this process and under its lease, but with its own manager and cache. A
// manager's controllers all wait for the last of its caches: one kind without its CRD or rights would keep every other controller
// from working. So a neighbour that cannot work reports it and tries again, and does not affect the others.
type neighbour struct {
	config *rest.Config
	add    func(context.Context, ctrl.Manager) error
}

// Start implements manager.Runnable; it is called once this process has the lease.
func (n *neighbour) Start(ctx context.Context) error {
	backoff := wait.Backoff{Duration: time.Second, Factor: 2, Jitter: 0.2, Steps: 7, Cap: time.Minute}
	for ctx.Err() == nil {
		err := n.run(ctx)
		if ctx.Err() != nil {
			return nil
		}
		pause := backoff.Step()
		klog.FromContext(ctx).Error(err, "A controller ended; the others continue", "nextStartIn", pause)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
		}
	}
	return nil
}

func (n *neighbour) run(ctx context.Context) error {
	scheme := runtime.NewScheme()
	if err := clientgoscheme.AddToScheme(scheme); err != nil {
		return fmt.Errorf("set up an additional controller: %w", err)
	}
	manager, err := ctrl.NewManager(n.config, ctrl.Options{
		Scheme: scheme, Logger: klog.FromContext(ctx),
		Cache:                  cache.Options{DefaultTransform: cache.TransformStripManagedFields()},
		Metrics:                metricsserver.Options{BindAddress: "0"},
		HealthProbeBindAddress: "0",
	})
	if err != nil {
		return fmt.Errorf("set up an additional controller: %w", err)
	}
	if err := n.add(ctx, manager); err != nil {
		return fmt.Errorf("set up an additional controller: %w", err)
	}
	if err := manager.Start(ctx); err != nil {
		return fmt.Errorf("run an additional controller: %w", err)
	}
	return nil
}
