package draplugin

import (
	specs "tags.cncf.io/container-device-interface/specs-go"

	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
)

// describe writes the file of each request of a claim, and mounts it with the first device of the request: a container that uses a
// request gets all of its devices.
func (p *Plugin) describe(claim *Claim, prepared *Prepared) error {
	if prepared.Attributes == nil || !p.config.Node.DeviceMetadata && !prepared.Described {
		return nil
	}
	described, first := map[string][]v1alpha1.Device{}, map[string]int{}
	for i, d := range claim.Devices {
		if _, known := first[d.Request]; !known {
			first[d.Request] = i
		}
		described[d.Request] = append(described[d.Request], v1alpha1.Device{Driver: d.Driver, Pool: d.Pool, Name: d.Device,
			Attributes: prepared.Attributes(i)})
	}
	if prepared.Edits == nil {
		prepared.Edits = make([]specs.ContainerEdits, len(claim.Devices))
	}
	for request, i := range first {
		mount, err := p.metadata.Write(claim.ResourceClaim, request, described[request])
		if err != nil {
			return err
		}
		prepared.Edits[i].Mounts = append(prepared.Edits[i].Mounts, mount)
	}
	return nil
}
