package plugin

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/partition"
)

// attributesIn are the attributes of the only device in a container's metadata.
func attributesIn(t *testing.T, mounts []*specs.Mount) map[resourceapi.QualifiedName]resourceapi.DeviceAttribute {
	t.Helper()
	for _, m := range mounts {
		if !strings.HasPrefix(m.ContainerPath, "/var/run/kubernetes.io/dra-device-attributes/") {
			continue
		}
		text, err := os.ReadFile(m.HostPath)
		if err != nil {
			t.Fatal(err)
		}
		var d v1alpha1.DeviceMetadata
		if err := json.Unmarshal(text, &d); err != nil || len(d.Requests) != 1 || len(d.Requests[0].Devices) != 1 {
			t.Fatalf("%v: %s", err, text)
		}
		return d.Requests[0].Devices[0].Attributes
	}
	t.Fatalf("no metadata among the mounts %+v", mounts)
	return nil
}

//shows:device-metadata
func TestPluginGivesContainersMetadataOfEveryForm(t *testing.T) {
	for name, c := range map[string]struct {
		device   string
		forms    devices.Mode
		share    string
		consumed map[string]string
		want     map[resourceapi.QualifiedName]string
	}{
		"a whole GPU": {"gpu-0", devices.ModeWhole, "", nil, map[resourceapi.QualifiedName]string{"type": "gpu", "uuid": "GPU"}},
		"a MIG device that is cut for the claim": {"gpu-0-mig-1g5gb-19-3", devices.ModeFlexible, "", nil,
			map[resourceapi.QualifiedName]string{"type": "mig", "profile": "1g.5gb", "uuid": "MIG"}},
		"a share": {"gpu-0-shared", devices.ModeFlexible, "s1", map[string]string{"memory": "1Gi", "cores": "10"},
			map[resourceapi.QualifiedName]string{"type": "shared", "uuid": "GPU"}},
	} {
		t.Run(name, func(t *testing.T) {
			b := newBench(t, gputest.New(t, 1), func(o *Options) {
				o.DeviceMetadata, o.Forms = true, `{"default": {"form": "`+string(c.forms)+`"}}`
			})
			claim := b.claim("u1", nil, device{name: c.device, share: c.share, capacity: c.consumed})
			got := attributesIn(t, b.edits(claim, b.mustPrepare(claim)...).Mounts)
			for attribute, want := range c.want {
				if attribute == devices.AttrUUID {
					continue
				}
				if v := got[attribute].StringValue; v == nil || *v != want {
					t.Errorf("attribute %s is %v, want %s", attribute, got[attribute], want)
				}
			}
			uuid := b.machine.GPUs[0].UUID
			if c.want["uuid"] == "MIG" {
				instances, err := partition.List(read(t, b.machine.GPUs[0]))
				if err != nil || len(instances) != 1 {
					t.Fatal(instances, err)
				}
				uuid = instances[0].UUID
			}
			if v := got[devices.AttrUUID].StringValue; v == nil || *v != uuid || uuid == "" {
				t.Errorf("uuid is %v, want %s", got[devices.AttrUUID], uuid)
			}
			for _, s := range b.slices() {
				for _, d := range s.Spec.Devices {
					if _, has := d.Attributes[devices.AttrUUID]; d.Name == c.device && has && c.want["uuid"] == "MIG" {
						t.Errorf("the slice changed for the claim: %v", d.Attributes)
					}
				}
			}
		})
	}
}
