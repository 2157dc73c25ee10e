// Package capability finds the fields of a ResourceSlice that the API server keeps. A server whose feature gates are off drops the fields
// of those features without an error: a device whose taint is dropped is allocated although it is broken, and two devices whose counters
// are dropped are allocated although they are the same hardware. The server's version does not decide it: gates are switched by hand, and
// a server emulates earlier versions.
package capability

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/version"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"
)

// The feature gates of the API server, as pkg/features of Kubernetes names them.
const (
	gateTaints   = "DRADeviceTaints"
	gateCounters = "DRAPartitionableDevices"
	gateShares   = "DRAConsumableCapacity"
)

// Missing are the features of resource.k8s.io that a cluster lacks. The zero value lacks none.
type Missing struct {
	// Taints: the API server drops the taints of devices (gate DRADeviceTaints).
	Taints bool
	// Counters: it drops shared counters (gate DRAPartitionableDevices).
	Counters bool
	// Shares: it drops allowMultipleAllocations and request policies (gate DRAConsumableCapacity).
	Shares bool
	// CountedShares: the scheduler forgets the counters of devices that allow multiple allocations, so that these and the others of
	// their counter set are allocated at once. So do Kubernetes 1.36.0 and 1.36.1 (kubernetes#139034).
	CountedShares bool
}

// Any reports whether a feature is missing.
func (m Missing) Any() bool { return m != Missing{} }

// Error names the missing fields by the gates that an administrator sets: the gates of the API server, and the version.
func (m Missing) Error() string {
	var gates, words []string
	for _, g := range []struct {
		missing bool
		gate    string
	}{{m.Taints, gateTaints}, {m.Counters, gateCounters}, {m.Shares, gateShares}} {
		if g.missing {
			gates = append(gates, g.gate)
		}
	}
	if len(gates) > 0 {
		words = append(words, "the API server's feature gates "+strings.Join(gates, ", ")+" (on by default since Kubernetes 1.36)")
	}
	if m.CountedShares {
		words = append(words, "Kubernetes 1.36.2 (kubernetes#139034)")
	}
	return strings.Join(words, ", and ")
}

// Dropped returns the missing fields where also the named gates are off (resourceslice.DroppedFieldsError.DisabledFeatures).
func (m Missing) Dropped(gates []string) Missing {
	m.Taints = m.Taints || slices.Contains(gates, gateTaints)
	m.Counters = m.Counters || slices.Contains(gates, gateCounters)
	m.Shares = m.Shares || slices.Contains(gates, gateShares)
	return m
}

// Server is an API server, queried as the driver of one node.
type Server struct {
	Client kubernetes.Interface
	// Driver, Node and Pool are those of the slices that the caller may write.
	Driver, Node, Pool string
}

// State returns the API server's version, and the connection by which the client reaches it.
func (s Server) State(ctx context.Context) (State, error) { return StateOf(ctx, s.Client.Discovery()) }

// Missing queries the API server by dry runs, which write nothing. Refused reports whether its error is permanent; the features that the
// version alone shows are returned with it.
func (s Server) Missing(ctx context.Context) (Missing, error) {
	var m Missing
	state, err := s.State(ctx)
	if err != nil {
		return m, err
	}
	m.CountedShares = forgetsCounters(state.Version)
	device := resourceapi.Device{Name: "probe", AllowMultipleAllocations: ptr.To(true),
		Taints: []resourceapi.DeviceTaint{{Key: "gpufabric.io/probe", Effect: resourceapi.DeviceTaintEffectNoSchedule}}}
	kept, err := s.keeps(ctx, resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{device}})
	if err != nil {
		return m, err
	}
	m.Taints = kept == nil || len(kept.Devices) != 1 || len(kept.Devices[0].Taints) == 0
	m.Shares = kept == nil || len(kept.Devices) != 1 || !ptr.Deref(kept.Devices[0].AllowMultipleAllocations, false)
	counters := map[string]resourceapi.Counter{"probe": {Value: *resource.NewQuantity(1, resource.DecimalSI)}}
	kept, err = s.keeps(ctx, resourceapi.ResourceSliceSpec{SharedCounters: []resourceapi.CounterSet{{Name: "probe", Counters: counters}}})
	if err != nil {
		return m, err
	}
	m.Counters = kept == nil || len(kept.SharedCounters) == 0
	if m.Counters {
		return m, nil
	}
	// The gate of Kubernetes 1.34 wants counters and devices in one slice, and refuses this one.
	consumer := resourceapi.Device{Name: "probe",
		ConsumesCounters: []resourceapi.DeviceCounterConsumption{{CounterSet: "probe", Counters: counters}}}
	kept, err = s.keeps(ctx, resourceapi.ResourceSliceSpec{Devices: []resourceapi.Device{consumer}})
	if err != nil {
		return m, err
	}
	m.Counters = kept == nil || len(kept.Devices) != 1 || len(kept.Devices[0].ConsumesCounters) == 0
	return m, nil
}

// keeps returns the slice as the API server would store it; nil: the server refuses its content.
func (s Server) keeps(ctx context.Context, spec resourceapi.ResourceSliceSpec) (*resourceapi.ResourceSliceSpec, error) {
	spec.Driver, spec.NodeName = s.Driver, &s.Node
	spec.Pool = resourceapi.ResourcePool{Name: s.Pool, Generation: 1, ResourceSliceCount: 1}
	stored, err := s.Client.ResourceV1().ResourceSlices().Create(ctx, &resourceapi.ResourceSlice{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "probe-"}, Spec: spec}, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
	switch {
	case refusesContent(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("find the fields of a ResourceSlice that the API server keeps, by a dry run: %w", err)
	}
	return &stored.Spec, nil
}

// refusesContent reports whether the API server finds a field of a slice's spec wrong. An admission policy may refuse the slice as invalid
// too, and does not name a field.
func refusesContent(err error) bool {
	var status apierrors.APIStatus
	if !apierrors.IsInvalid(err) || !errors.As(err, &status) || status.Status().Details == nil {
		return false
	}
	return slices.ContainsFunc(status.Status().Details.Causes, func(c metav1.StatusCause) bool {
		return strings.HasPrefix(c.Field, "spec")
	})
}

// Refused reports whether an error of Missing is permanent: a missing right, a policy that refuses the slice,
// or an admission webhook without dry runs.
func Refused(err error) bool {
	return apierrors.IsInvalid(err) || apierrors.IsForbidden(err) || apierrors.IsBadRequest(err) || apierrors.IsMethodNotSupported(err) ||
		apierrors.IsNotFound(err)
}

// forgetsCounters reports whether a version is 1.36.0 or 1.36.1, pre-releases included.
func forgetsCounters(text string) bool {
	first, _, _ := strings.Cut(text, " ")
	v, err := version.ParseGeneric(first)
	return err == nil && v.Major() == 1 && v.Minor() == 36 && v.Patch() < 2
}
