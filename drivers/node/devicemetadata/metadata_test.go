package devicemetadata_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/node/devicemetadata"
)

func files(t *testing.T) devicemetadata.Files {
	return devicemetadata.Files{Directory: filepath.Join(t.TempDir(), "metadata"), Driver: "gpu.nvidia.com"}
}

func claim(annotation string) *resourceapi.ResourceClaim {
	c := &resourceapi.ResourceClaim{ObjectMeta: metav1.ObjectMeta{Name: "vm-gpu-x7k2p", Namespace: "team", UID: "u1"}}
	if annotation != "" {
		c.Annotations = map[string]string{resourceapi.PodResourceClaimAnnotation: annotation}
	}
	return c
}

func TestFilesHaveDevicesOfRequest(t *testing.T) {
	const root = "/var/run/kubernetes.io/dra-device-attributes/"
	for name, c := range map[string]struct{ annotation, request, want string }{
		"a claim":                      {"", "gpus", root + "resourceclaims/vm-gpu-x7k2p/gpus/gpu.nvidia.com-metadata.json"},
		"a claim of a template":        {"gpu", "gpus", root + "resourceclaimtemplates/gpu/gpus/gpu.nvidia.com-metadata.json"},
		"a subrequest":                 {"", "gpus/large", root + "resourceclaims/vm-gpu-x7k2p/gpus/gpu.nvidia.com-metadata.json"},
		"an annotation that leads out": {"../../etc", "gpus", root + "resourceclaims/vm-gpu-x7k2p/gpus/gpu.nvidia.com-metadata.json"},
	} {
		f := files(t)
		devices := []v1alpha1.Device{{Driver: "gpu.nvidia.com", Pool: "n1-gpu", Name: "gpu-0",
			Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: ptr.To("vfio")}}}}
		for range 2 {
			mount, err := f.Write(claim(c.annotation), c.request, devices)
			if err != nil {
				t.Fatal(name, err)
			}
			if mount.ContainerPath != c.want || mount.Options[0] != "ro" || !strings.HasPrefix(mount.HostPath, f.Directory+"/u1/") {
				t.Errorf("%s: mount %+v", name, mount)
			}
			text, err := os.ReadFile(mount.HostPath)
			if err != nil {
				t.Fatal(err)
			}
			var got v1alpha1.DeviceMetadata
			if err := json.Unmarshal(text, &got); err != nil || got.APIVersion != "metadata.resource.k8s.io/v1alpha1" ||
				got.Kind != "DeviceMetadata" || len(got.Requests) != 1 || got.Requests[0].Name != c.request ||
				*got.Requests[0].Devices[0].Attributes["type"].StringValue != "vfio" {
				t.Errorf("%s: %v, %s", name, err, text)
			}
		}
	}
}

func TestFilesEndWithTheirClaim(t *testing.T) {
	f := files(t)
	for _, uid := range []types.UID{"u1", "u2", "u3"} {
		c := claim("")
		c.UID = uid
		if _, err := f.Write(c, "gpus", nil); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := f.Remove("u1"); err != nil {
			t.Error(err)
		}
	}
	if err := f.Keep(map[types.UID]bool{"u2": true}); err != nil {
		t.Error(err)
	}
	left, err := os.ReadDir(f.Directory)
	if err != nil || len(left) != 1 || left[0].Name() != "u2" {
		t.Errorf("left %v, %v", left, err)
	}
	if err := files(t).Keep(nil); err != nil {
		t.Errorf("without a directory: %v", err)
	}
}

func TestFilesRefuseNamesThatLeadOut(t *testing.T) {
	f := files(t)
	c := claim("")
	for _, request := range []string{"", "..", "../x", "A"} {
		if _, err := f.Write(c, request, nil); err == nil {
			t.Errorf("request %q is accepted", request)
		}
	}
	c.UID = "../u"
	if _, err := f.Write(c, "gpus", nil); err == nil || f.Remove("../u") == nil || f.Remove("") == nil {
		t.Errorf("claims that lead out are accepted: %v", err)
	}
}
