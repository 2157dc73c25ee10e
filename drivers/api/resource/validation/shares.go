package validation

import (
	"encoding/json"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
)

// ShareInterval is the reason why a share's claim may not set the time slice. A GPU has one time slice for all its shares, and its
// shares can only be prepared while their claims agree on it. A claim of one percent that set it would keep every other claim off
// the GPU.
const ShareInterval = "the time slice of a shared GPU holds for all who share it, so only a DeviceClass sets it: leave the interval out, " +
	"ask for a whole GPU, or use a DeviceClass with the interval"

// shareClass is the DeviceClass of shares that the chart creates.
const shareClass = "gpu-share.gpufabric.io"

// AsksForInterval reports whether a configuration in JSON sets the length of time slices. Decode does not show this, since it fills in
// the default.
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

// sliceOfAShare reports whether a claim's configuration sets the time slice for a request that can only get a share: a request with an
// amount of memory or cores, or for the class of shares. A share of another class, such as a VGPUProfile's, cannot be recognized
// here: the chart's policy gpu-share-allocations refuses its allocation, and the node plugin its preparation.
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
