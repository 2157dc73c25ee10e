// Package health follows the health of a node's GPUs through NVML's events and turns faults into device taints.
//
// A fault lasts until the GPU reports that it is healthy again. It is stored on disk, so it survives a restart of the plugin.
package health

import (
	"fmt"
	"strconv"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/inventory"
)

// FaultKind is the kind of a fault; it is the name of its taint's key.
type FaultKind string

const (
	// XID is an error that the driver numbers (https://docs.nvidia.com/deploy/xid-errors).
	XID FaultKind = "xid"
	// ECC is a memory error.
	ECC FaultKind = "ecc"
	// NVLink is an error of a link between GPUs.
	NVLink FaultKind = "nvlink"
	// Lost is a GPU that does not answer.
	Lost FaultKind = "lost"
	// Record is a GPU whose faults cannot be read from disk: it may have any.
	Record FaultKind = "record"
)

// Fault is something wrong with a GPU, or with one MIG instance on it.
type Fault struct {
	GPU  string    `json:"gpu"`
	Kind FaultKind `json:"kind"`
	// Code is the XID; 0 where there is none.
	Code uint64 `json:"code,omitempty"`
	// Fatal faults keep new claims away; others are only shown.
	Fatal bool `json:"fatal"`
	// Message describes the fault.
	Message string `json:"message"`
	// Since is when it was first seen, Last when it was last seen.
	Since time.Time `json:"since"`
	Last  time.Time `json:"last"`
	// Bus is the GPU's PCI address; empty: unknown. Where another GPU is there by now, this one was replaced.
	Bus string `json:"bus,omitempty"`
	// Boot is the boot in which it was seen.
	Boot string `json:"boot,omitempty"`
	// Link is the number of the failed NVLink; nil for other faults.
	Link *int `json:"link,omitempty"`
	// Placement is the MIG instance's place; nil for the whole GPU.
	Placement *inventory.Placement `json:"placement,omitempty"`
}

// same reports whether two reports are of the same fault. Not every kind has a code, so a fatal fault is never the same as one that is
// not fatal.
func (f Fault) same(o Fault) bool {
	return f.GPU == o.GPU && f.Kind == o.Kind && f.Code == o.Code && f.Fatal == o.Fatal && equal(f.Link, o.Link) &&
		equal(f.Placement, o.Placement)
}

func equal[T comparable](a, b *T) bool {
	if a == nil || b == nil {
		return a == b
	}
	return *a == *b
}

// Touches reports whether a device is unhealthy by the fault.
func (f Fault) Touches(d *devices.Device) bool {
	if d.GPU.UUID != f.GPU {
		return false
	}
	if f.Placement == nil || d.Form != devices.MIG {
		return true
	}
	return d.Placement.Start < f.Placement.Start+f.Placement.Size && f.Placement.Start < d.Placement.Start+d.Placement.Size
}

// Taint is the taint for the fault. A lost GPU's pods are evicted, since their work there cannot succeed.
func (f Fault) Taint() resourceapi.DeviceTaint {
	t := resourceapi.DeviceTaint{Key: devices.Driver + "/" + string(f.Kind), TimeAdded: &metav1.Time{Time: f.Since},
		Effect: resourceapi.DeviceTaintEffectNone}
	switch {
	case f.Code != 0:
		t.Value = strconv.FormatUint(f.Code, 10)
	case f.Link != nil:
		t.Value = "link-" + strconv.Itoa(*f.Link)
	}
	switch {
	case f.Kind == Lost:
		t.Effect = resourceapi.DeviceTaintEffectNoExecute
	case f.Fatal:
		t.Effect = resourceapi.DeviceTaintEffectNoSchedule
	}
	return t
}

func (f Fault) String() string {
	where := f.GPU
	if f.Placement != nil {
		where = fmt.Sprintf("%s, memory slices %d to %d", f.GPU, f.Placement.Start, f.Placement.Start+f.Placement.Size-1)
	}
	return fmt.Sprintf("%s: %s (since %s)", where, f.Message, f.Since.UTC().Format(time.RFC3339))
}

// Taints lists each device's taints. A device has each key once: of several faults of a kind the most severe counts, then the
// first.
func Taints(faults []Fault, all []*devices.Device) map[string][]resourceapi.DeviceTaint {
	out := map[string][]resourceapi.DeviceTaint{}
	for _, d := range all {
		seen := map[string]int{}
		for _, f := range faults {
			if !f.Touches(d) {
				continue
			}
			t := f.Taint()
			if at, ok := seen[t.Key]; ok {
				if out[d.Name()][at].Effect == resourceapi.DeviceTaintEffectNone {
					out[d.Name()][at] = t
				}
				continue
			}
			seen[t.Key] = len(out[d.Name()])
			out[d.Name()] = append(out[d.Name()], t)
		}
	}
	return out
}
