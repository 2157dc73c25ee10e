// Package memorylimits lets NVIDIA's driver limit the GPU memory of containers, by their cgroups: nvmlDeviceSetMemoryLimits_v1,
// which is new in r615 (docs.nvidia.com/deploy/mps, memory partitioning).
//
// A container's limit is set when its cgroup exists and none of its processes runs. The driver's reservation must be released
// between the end of its processes and the removal of the cgroup, since otherwise the parent cgroups would keep it. There is little
// time. containerd reports the end before it removes the cgroup, but where systemd manages the cgroup, systemd removes it as soon
// as it is empty. So this package also watches the kernel's events, which report the end of the last process at once. It stores
// every limit on disk before it sets it, so that a crash leaves no reservation behind.
package memorylimits

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/keylock"
	"gpufabric.io/drivers/node/store"
)

// Container is a container with a limit.
type Container struct {
	// ID is the container runtime's. Cgroup is the runtime's name for the container's cgroup.
	ID, Cgroup string
	// PodUID and Name are Kubernetes' names; they identify whose memory is used.
	PodUID, Name string
}

// record has the limits that were set for a container.
type record struct {
	PodUID    string `json:"podUID,omitempty"`
	Container string `json:"container,omitempty"`
	// Cgroup is the directory of the container's cgroup.
	Cgroup string  `json:"cgroup"`
	Limits []Limit `json:"limits"`
}

// version is the version of the records' format.
const version = 1

func kind() store.Format[record] {
	return store.Format[record]{Name: "gpufabric-memory-limit", Version: version, Check: func(_ string, r record) error {
		if r.Cgroup == "" || len(r.Limits) == 0 {
			return errors.New("it lacks a cgroup or a limit")
		}
		return nil
	}}
}

// Keeper sets the limits of a node's containers, and records them. It is safe for concurrent use. Make it with Open.
type Keeper struct {
	Driver
	records    *store.Store[record]
	containers keylock.Locks
	// changed has a token when a container got or lost its limit.
	changed chan struct{}
}

var _ prometheus.Collector = (*Keeper)(nil)

// Open makes a Keeper with the records in a directory. It sets unreadable records aside and returns them: their reservations stay until
// their containers' cgroups are gone.
func Open(driver Driver, directory string) (*Keeper, []store.Unreadable, error) {
	records, unreadable, err := store.Open(store.Options{Directory: directory, Extension: ".limit", Writer: atomicfile.Writer{}}, kind())
	if err != nil {
		return nil, nil, err
	}
	return &Keeper{Driver: driver, records: records, changed: make(chan struct{}, 1)}, unreadable, nil
}

// Hold limits a container whose processes do not run yet. After an error nothing is reserved.
func (k *Keeper) Hold(ctx context.Context, c Container, limits []Limit) error {
	unlock, err := k.containers.Lock(ctx, c.ID)
	if err != nil {
		return err
	}
	defer unlock()
	if err := k.has(); err != nil {
		return err
	}
	directory, err := k.Cgroups.Container(c.Cgroup, c.ID)
	if err != nil {
		return err
	}
	return k.hold(c.ID, record{PodUID: c.PodUID, Container: c.Name, Cgroup: directory, Limits: limits}, nil)
}

// hold records limits and sets them. before is the earlier record; nil: there was none. After an error it is the record again, and
// none of it is released: the container's processes run.
func (k *Keeper) hold(id string, r record, before *record) error {
	if err := k.records.Put(id, r); err != nil {
		return err
	}
	k.notify()
	for i, limit := range r.Limits {
		if err := k.Set(r.Cgroup, limit); err != nil {
			if before != nil {
				return errors.Join(err, k.records.Put(id, *before))
			}
			return errors.Join(err, k.release(id, record{Cgroup: r.Cgroup, Limits: r.Limits[:i]}))
		}
	}
	return nil
}

// Restore limits a running container whose limit is missing or wrong: this program was away when the container started, or the
// driver was loaded again. late: the limit was missing.
func (k *Keeper) Restore(ctx context.Context, c Container, limits []Limit) (late bool, err error) {
	unlock, err := k.containers.Lock(ctx, c.ID)
	if err != nil {
		return false, err
	}
	defer unlock()
	if err := k.has(); err != nil {
		return false, err
	}
	// By now the container may have made cgroups of its own below its first one.
	r, known := k.records.Get(c.ID)
	var before *record
	if known {
		earlier := r
		before = &earlier
	} else if r.Cgroup, err = k.Cgroups.Container(c.Cgroup, c.ID); err != nil {
		return false, err
	}
	r.PodUID, r.Container, r.Limits = c.PodUID, c.Name, limits
	for _, limit := range limits {
		gpu, err := k.gpu(limit.UUID)
		if err != nil {
			return false, err
		}
		got, ret := gpu.GetMemoryLimits_v1(r.Cgroup)
		late = late || ret != nvml.SUCCESS || got.SoftLimit != limit.Bytes || got.HardLimit != limit.Bytes
	}
	if known && !late {
		return false, nil
	}
	return late, k.hold(c.ID, r, before)
}

// Release releases the reservation of a container whose processes have ended. The maximum of its cgroup stays: a process that is
// yet to be killed gets no more memory, and the limit ends with the cgroup. A container without a limit is no error.
func (k *Keeper) Release(ctx context.Context, id string) error {
	unlock, err := k.containers.Lock(ctx, id)
	if err != nil {
		return err
	}
	defer unlock()
	r, known := k.records.Get(id)
	if !known {
		return nil
	}
	return k.release(id, r)
}

// release removes a container's record once nothing is reserved for it, or nothing can be done about it any more.
func (k *Keeper) release(id string, r record) error {
	var errs []error
	switch _, err := os.Stat(r.Cgroup); {
	case errors.Is(err, fs.ErrNotExist):
		errs = append(errs, fmt.Errorf("the cgroup %s of container %s was removed before the memory that was reserved for it was released: "+
			"the driver may keep it reserved until the pod's cgroup is gone", r.Cgroup, id))
	case k.has() != nil:
		// Another driver was loaded since, which does not have the limit.
	default:
		for _, limit := range r.Limits {
			errs = append(errs, k.GiveUp(r.Cgroup, limit))
		}
		if err := errors.Join(errs...); err != nil {
			return err // it is tried again by Keep
		}
	}
	errs = append(errs, k.records.Delete(id))
	k.notify()
	return errors.Join(errs...)
}

// Keep releases every container that no longer runs: it ended while this program was away.
func (k *Keeper) Keep(ctx context.Context, live map[string]bool) {
	for _, id := range k.records.Names() {
		if live[id] {
			continue
		}
		if err := k.Release(ctx, id); err != nil {
			klog.FromContext(ctx).Error(err, "A container that has ended left its memory limit behind", "container", id)
		}
	}
}

// Use is a container's use of a GPU's memory.
type Use struct {
	PodUID, Container, UUID string
	Bytes                   uint64
}

// Used returns the use of each container with a limit, as the driver counts it. It omits unreadable ones, for example of a
// container that has just ended.
func (k *Keeper) Used() []Use {
	var out []Use
	if k.has() != nil {
		return nil
	}
	for _, r := range k.records.All() {
		for _, limit := range r.Limits {
			gpu, err := k.gpu(limit.UUID)
			if err != nil {
				continue
			}
			if got, ret := gpu.GetMemoryLimits_v1(r.Cgroup); ret == nvml.SUCCESS {
				out = append(out, Use{PodUID: r.PodUID, Container: r.Container, UUID: limit.UUID, Bytes: got.CurrentUsed})
			}
		}
	}
	return out
}

// Describe implements prometheus.Collector.
func (k *Keeper) Describe(to chan<- *prometheus.Desc) { k.records.Describe(to) }

// Collect implements prometheus.Collector: the records that could not be read.
func (k *Keeper) Collect(to chan<- prometheus.Metric) { k.records.Collect(to) }
