// Package gpucompare compares our GPU plugin with another driver of the same name. Each is a separate process on its own fake
// node of one profile, with one real API server. The test calls them in turn, as the kubelet does.
package gpucompare

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"gpufabric.io/tests/simcluster/controlplane"
)

const (
	// driverName is both drivers' name.
	driverName = "gpu.nvidia.com"
	// profileName is the machine: eight GPUs that can be cut.
	profileName = "h100-hgx"
	gpus        = 8
	// starts, rounds and migRounds are how often each thing is measured, for each driver.
	starts    = 5
	rounds    = 20
	migRounds = 5
	// idle is how long a plugin is idle before its memory is read.
	idle = 20 * time.Second
	// migDelay is how long the fake hardware takes to make a GPU instance.
	migDelay = time.Second
)

// Options define what to compare.
type Options struct {
	// Dir is where everything is written; short, because of unix sockets below it.
	Dir string
	// Ours and Theirs are the programs: gpufabric, and the other driver's gpu-kubelet-plugin.
	Ours, Theirs string
	// FakeFabric renders the nodes, with the libraries in Libraries.
	FakeFabric, Libraries string
	Progress              func(format string, args ...any)
}

// Result is what was measured of one driver.
type Result struct {
	Driver string
	// Times are durations by what was done.
	Times map[string][]time.Duration
	// Memory is the memory of the process, by the moment of the measurement.
	Memory map[string]memory
	// Requests are how many requests it made of the API server for each claim, by their kind.
	Requests map[string]float64
}

// memory is in KiB.
type memory struct{ anonymous, resident int }

// Run compares them.
func Run(ctx context.Context, options Options) (results []*Result, err error) {
	if err := os.MkdirAll(options.Dir, 0o755); err != nil {
		return nil, fmt.Errorf("make the directory of the comparison: %w", err)
	}
	binaries, err := controlplane.Binaries(ctx)
	if err != nil {
		return nil, err
	}
	plane, err := controlplane.Start(ctx, controlplane.Options{Dir: filepath.Join(options.Dir, "c"), Binaries: binaries})
	if err != nil {
		return nil, err
	}
	defer plane.Stop()
	config, err := plane.Admin()
	if err != nil {
		return nil, err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make the administrator's client: %w", err)
	}
	drivers := []*driver{ours(options, plane.Kubeconfig(), client), theirs(options, plane.Kubeconfig(), client)}
	defer func() {
		for _, d := range drivers {
			d.stop()
		}
	}()
	for _, step := range []struct {
		name string
		run  func(context.Context, []*driver) error
	}{
		{"render the nodes", prepareNodes},
		{"start, and cut GPUs on demand", measureCuttingStarts},
		{"start", measureStarts},
		{"prepare", measurePrepare},
		{"read claims", measureReads},
		{"prepare beside 2048 channels", measureBesideChannels},
		{"prepare while another GPU is cut", measureBesideMIG},
		{"memory after use", func(_ context.Context, drivers []*driver) error {
			return each(drivers, func(d *driver) error { return d.readMemory("after all this") })
		}},
	} {
		began := time.Now()
		if err := step.run(ctx, drivers); err != nil {
			return nil, fmt.Errorf("%s: %w", step.name, err)
		}
		options.Progress("%s: %.0f s", step.name, time.Since(began).Seconds())
	}
	for _, d := range drivers {
		d.stop()
		results = append(results, &d.result)
	}
	began := time.Now()
	if err := measurePods(ctx, options, binaries, results); err != nil {
		return nil, fmt.Errorf("pods: %w", err)
	}
	options.Progress("pods: %.0f s", time.Since(began).Seconds())
	return results, nil
}

func each(drivers []*driver, do func(*driver) error) error {
	for _, d := range drivers {
		if err := do(d); err != nil {
			return fmt.Errorf("%s: %w", d.result.Driver, err)
		}
	}
	return nil
}

func prepareNodes(ctx context.Context, drivers []*driver) error {
	return each(drivers, func(d *driver) error { return d.render(ctx) })
}

// measureStarts starts both with their defaults: they offer only whole GPUs.
func measureStarts(ctx context.Context, drivers []*driver) error {
	return measureStartsOf(ctx, drivers, false, "")
}

// measureCuttingStarts starts the other driver with its gate DynamicMIG and ours with every form, so that both publish every
// MIG placement of every GPU.
func measureCuttingStarts(ctx context.Context, drivers []*driver) error {
	return measureStartsOf(ctx, drivers, true, ", both with dynamic MIG")
}

func measureStartsOf(ctx context.Context, drivers []*driver, mig bool, how string) error {
	for range starts {
		if err := each(drivers, func(d *driver) error {
			took, err := d.restart(ctx, mig)
			what := "process start to published slices" + how
			d.result.Times[what] = append(d.result.Times[what], took)
			return err
		}); err != nil {
			return err
		}
	}
	if err := sleep(ctx, idle); err != nil {
		return err
	}
	return each(drivers, func(d *driver) error { return d.readMemory("idle" + how) })
}

func measurePrepare(ctx context.Context, drivers []*driver) error {
	return measureRounds(ctx, drivers, "")
}

// measureReads times the GET of a claim, with which every prepare of both drivers begins.
func measureReads(ctx context.Context, drivers []*driver) error {
	for round := range rounds {
		if err := each(drivers, func(d *driver) error {
			claim, err := d.claim(ctx, fmt.Sprintf("r-%d", round), d.gpus[0])
			if err != nil {
				return err
			}
			began := time.Now()
			_, err = d.client.ResourceV1().ResourceClaims(claim.Namespace).Get(ctx, claim.Name, metav1.GetOptions{})
			const what = "GET of a claim, by itself"
			d.result.Times[what] = append(d.result.Times[what], time.Since(began))
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

// measureBesideChannels measures with a CDI spec of all IMEX channels in the CDI directory, as a compute-domain plugin may
// have.
func measureBesideChannels(ctx context.Context, drivers []*driver) error {
	if err := each(drivers, (*driver).writeChannels); err != nil {
		return err
	}
	defer func() { _ = each(drivers, (*driver).removeChannels) }()
	return measureRounds(ctx, drivers, ", beside a CDI spec of 2048 channels")
}

func measureRounds(ctx context.Context, drivers []*driver, where string) error {
	// Separately, since after eight at once the API server and a driver still have work that would delay the next single claim.
	for _, claims := range []struct {
		what  string
		count int
	}{{"1 GPU", 1}, {"8 claims at once", gpus}} {
		for round := range rounds {
			if err := each(drivers, func(d *driver) error {
				return d.time(ctx, fmt.Sprintf("%d-%d", claims.count, round), claims.what+where, d.gpus[:claims.count])
			}); err != nil {
				return err
			}
		}
	}
	return nil
}

// measureBesideMIG times a whole GPU's claim while an instance is made on another GPU, which takes a second.
func measureBesideMIG(ctx context.Context, drivers []*driver) error {
	return each(drivers, func(d *driver) error {
		if _, err := d.restart(ctx, true); err != nil {
			return err
		}
		if err := d.inject(ctx, "delay", "function=nvmlDeviceCreateGpuInstanceWithPlacement",
			fmt.Sprintf("ms=%d", migDelay.Milliseconds())); err != nil {
			return err
		}
		if d.mig == "" || d.gpus[0] == d.migParent {
			return errors.New("published no MIG device on another GPU than the first")
		}
		for round := range migRounds {
			var slow sync.WaitGroup
			var slowErr error
			name := fmt.Sprintf("m-%d", round)
			mig, err := d.claim(ctx, name, d.mig)
			if err != nil {
				return err
			}
			slow.Go(func() { slowErr = d.prepare(ctx, mig) })
			// After half of that time the instance is still being made, on any machine.
			if err := sleep(ctx, migDelay/2); err != nil {
				return err
			}
			err = d.time(ctx, name+"-gpu", "1 GPU, while another is cut", d.gpus[:1])
			slow.Wait()
			if err := errors.Join(err, slowErr, d.unprepare(ctx, mig)); err != nil {
				return err
			}
		}
		return nil
	})
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

// quantile is the q-th of durations, in milliseconds; 0 of none.
func quantile(durations []time.Duration, q float64) float64 {
	if len(durations) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(durations))
	return float64(sorted[int(q*float64(len(sorted)-1)+0.5)].Microseconds()) / 1000
}
