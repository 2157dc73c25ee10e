// Package draplugin serves one kind of node device to the kubelet under Dynamic Resource Allocation: registration, ResourceSlices,
// prepare and unprepare, state on disk, CDI specs, reports on the claim, metrics and recovery. It handles no kind of device itself; a
// Preparer does.
//
// A claim is prepared in this order. First the plugin takes its lock and its devices' holds. It waits for a late unprepare of their
// last holder rather than failing, since a failed prepare costs the pod a minute. Then the Preparer does its work. Then the plugin
// writes the record and the CDI spec, and answers the kubelet. Unprepare goes the other way. A process that is killed at any point
// finds on restart the steps to redo or undo. Different claims never wait for each other.
package draplugin

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/ledger"
)

// Preparer prepares and unprepares the devices of one driver. Its methods are called concurrently for different claims, never for the same
// claim.
type Preparer interface {
	// Prepare makes the devices of a claim ready for containers. It must be repeatable: it is called again after it failed, after a
	// crash and after a reboot. ctx ends shortly before the kubelet gives up on the call; waiting inside until then is better than
	// failing. Announce effects outside this process that must be undone with progress.Intend first. Errors made with Refuse give the
	// user a reason; any other error is a failure, and is retried.
	Prepare(ctx context.Context, claim *Claim, progress Progress) (*Prepared, error)
	// Unprepare undoes Prepare, including one that was cut short (record.Phase is then Preparing). It must be repeatable.
	Unprepare(ctx context.Context, record claimstate.Record) error
}

// Recoverer is a Preparer that compares the hardware with the records, once, before the kubelet can call. aside are claims with unreadable
// records. Parts of the hardware without a record may belong to them, and must not be removed.
type Recoverer interface {
	Recover(ctx context.Context, records []claimstate.Record, aside []types.UID) error
}

// Renewer is a Preparer that can find prepared claims with outdated devices. Such a claim is prepared again: by Plugin.Renew, and at the
// kubelet's next prepare. Its containers get the new edits when they restart.
type Renewer interface {
	Outdated(record claimstate.Record) bool
}

// Holder is a Preparer whose devices exclude each other in other ways than by name (a GPU and its slices). Without it a claim has
// every device exclusively, except those allocated as shares.
type Holder interface {
	Holds(device AllocatedDevice) []ledger.Reservation
}

// Prepared is the result of Prepare.
type Prepared struct {
	// Edits are the container edits of the claim's devices: Edits[i] belongs to Claim.Devices[i]. A device with empty edits gets
	// no CDI device. A nil slice: none gets one.
	Edits []specs.ContainerEdits
	// Attributes returns the attributes of Claim.Devices[i], for its containers; nil: they do not receive metadata. Described gives
	// it to them without --device-metadata too.
	Attributes func(i int) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute
	Described  bool
	// Data is kept in the claim's record (as JSON) for Unprepare and Recover.
	Data any
	// Warnings are problems of a prepared claim, for its author: they become Events on the claim and its pods.
	Warnings []Remark
	// Notes are Events of type Normal about a prepared claim, on the claim and its pods too.
	Notes []Remark
}

// Remark is the content of an Event.
type Remark struct {
	Reason  string // a CamelCase word
	Message string
}

// Claim is an allocated claim as this driver sees it.
type Claim struct {
	*resourceapi.ResourceClaim
	// Devices are the claim's devices of this driver on this node, in the order of the allocation.
	Devices []AllocatedDevice
	// Beside returns the names of this driver's devices that the claim's pods have by other claims, as far as the plugin has seen them;
	// nil: unknown.
	Beside func() []string
}

// Progress takes the reports of a preparation before it ends. Its methods may be called from any goroutine.
type Progress interface {
	// Intend durably records data before an effect, so that Unprepare finds it after a crash.
	Intend(data any) error
	// Waiting reports the reason of a wait to the user, by an Event on the claim and its pods. reason is a CamelCase word.
	// Repeated messages are reported once. Other messages with the same reason are held back for a while. An error with the same
	// reason, after the kubelet's call has run out, counts as the same wait.
	Waiting(reason, message string)
}

// AllocatedDevice is one device of a claim.
type AllocatedDevice struct {
	resourceapi.DeviceRequestAllocationResult
	// Configs are the opaque configurations for this driver that apply to the device, weakest first: those of the class before
	// those of the claim.
	Configs []OpaqueConfig
}

// OpaqueConfig is one configuration as its author wrote it.
type OpaqueConfig struct {
	// Source is where it was written: the DeviceClass (an administrator's) or the claim (a user's).
	Source resourceapi.AllocationConfigSource
	// Path is the field in the claim that has it, for error messages.
	Path string
	// Raw is the JSON object.
	Raw json.RawMessage
}

// CDIName is the name of the device's CDI device within its claim.
func (d AllocatedDevice) CDIName() string {
	if d.ShareID != nil {
		return d.Device + "-" + string(*d.ShareID)
	}
	return d.Device
}

// Admin reports whether the claim only observes the device.
func (d AllocatedDevice) Admin() bool { return d.AdminAccess != nil && *d.AdminAccess }

// newClaim extracts the part of a claim that belongs to driver.
func newClaim(claim *resourceapi.ResourceClaim, driver string) (*Claim, error) {
	if claim.Status.Allocation == nil {
		return nil, fmt.Errorf("claim %s/%s is not allocated", claim.Namespace, claim.Name)
	}
	result := &Claim{ResourceClaim: claim}
	allocation := claim.Status.Allocation.Devices
	for _, device := range allocation.Results {
		if device.Driver != driver {
			continue
		}
		result.Devices = append(result.Devices, AllocatedDevice{
			DeviceRequestAllocationResult: device,
			Configs:                       configsFor(device.Request, allocation.Config, driver),
		})
	}
	return result, nil
}

// configsFor returns the configurations that apply to a request, weakest first. The API lists those of classes before those of the
// claim; this does not rely on it.
func configsFor(request string, configs []resourceapi.DeviceAllocationConfiguration, driver string) []OpaqueConfig {
	var result []OpaqueConfig
	for _, source := range []resourceapi.AllocationConfigSource{resourceapi.AllocationConfigSourceClass,
		resourceapi.AllocationConfigSourceClaim} {
		for i, config := range configs {
			if config.Source != source || config.Opaque == nil || config.Opaque.Driver != driver || !appliesTo(config.Requests, request) {
				continue
			}
			result = append(result, OpaqueConfig{
				Source: source,
				Path:   ConfigPath(i),
				Raw:    json.RawMessage(config.Opaque.Parameters.Raw),
			})
		}
	}
	return result
}

// ConfigPath is the field of a claim's configuration by its index in the allocation.
func ConfigPath(index int) string {
	return fmt.Sprintf("status.allocation.devices.config[%d].opaque.parameters", index)
}

// appliesTo reports whether a configuration applies to a request. requests lists the requests that it is for (none: all). A request is
// "name" or "name/subrequest".
func appliesTo(requests []string, request string) bool {
	base, _, _ := strings.Cut(request, "/")
	return len(requests) == 0 || slices.Contains(requests, request) || slices.Contains(requests, base)
}
