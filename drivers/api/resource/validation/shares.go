package validation

import (
	"encoding/json"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// ShareInterval is why a claim's own time slice is refused for a share. A GPU has one time slice for all who share it, and its shares are
// prepared only while they agree about it: a claim of one percent that chose it would keep every other claim off the GPU.
const ShareInterval = "the time slice of a shared GPU holds for all who share it, so only a DeviceClass sets it: leave the interval out, " +
	"ask for a whole GPU, or use a DeviceClass with the interval"

// shareClass is the DeviceClass of shares that the chart makes.
const shareClass = "gpu-share.gpufabric.io"

// AsksForInterval says whether a configuration in JSON chooses the length of time slices. Decode does not tell: it fills in the default.
func AsksForInterval(raw []byte) bool {
	var config struct {
		Sharing struct {
			TimeSlicing struct {
				Interval *string `json:"interval"`
			} `json:"timeSlicingConfig"`
		} `json:"sharing"`
	}
	return json.Unmarshal(raw, &config) == nil && config.Sharing.TimeSlicing.Interval != nil
}

// sliceOfAShare says whether a claim's configuration chooses the time slice for a request that can only get a share: one that asks for an
// amount of memory or cores, or for the class of shares. The node plugin refuses what cannot be seen here: a share by another class, such
// as a VGPUProfile's.
func sliceOfAShare(spec *resourceapi.ResourceClaimSpec, c resourceapi.DeviceClaimConfiguration) bool {
	if c.Opaque == nil || c.Opaque.Driver != GPUDriver || !AsksForInterval(c.Opaque.Parameters.Raw) {
		return false
	}
	applies := func(name string) bool {
		request, _, _ := strings.Cut(name, "/")
		return len(c.Requests) == 0 || slices.Contains(c.Requests, name) || slices.Contains(c.Requests, request)
	}
	for _, request := range spec.Devices.Requests {
		if e := request.Exactly; e != nil && applies(request.Name) && share(e.DeviceClassName, e.Capacity) {
			return true
		}
		for _, sub := range request.FirstAvailable {
			if applies(request.Name+"/"+sub.Name) && share(sub.DeviceClassName, sub.Capacity) {
				return true
			}
		}
	}
	return false
}

func share(class string, capacity *resourceapi.CapacityRequirements) bool {
	if class == shareClass {
		return true
	}
	if capacity == nil {
		return false
	}
	for _, name := range []resourceapi.QualifiedName{"memory", "cores"} {
		for _, prefix := range []resourceapi.QualifiedName{"", GPUDriver + "/"} {
			if _, asked := capacity.Requests[prefix+name]; asked {
				return true
			}
		}
	}
	return false
}
