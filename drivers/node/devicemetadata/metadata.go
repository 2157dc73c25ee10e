// Package devicemetadata gives containers a file about each request of a claim: which devices it has, with their attributes (KEP-5304,
// k8s.io/dynamic-resource-allocation/api/metadata). KubeVirt finds by it the PCI addresses of GPUs. The files are a part of the claim,
// so that they end with it, however it is released; those of kubeletplugin.EnableDeviceMetadata wait for the kubelet.
package devicemetadata

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/dynamic-resource-allocation/api/metadata"
	"k8s.io/dynamic-resource-allocation/api/metadata/v1alpha1"
	"k8s.io/dynamic-resource-allocation/resourceclaim"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/node/atomicfile"
)

// Files are the files of a driver's claims.
type Files struct {
	// Directory has the files. Container runtimes see it at the same path.
	Directory string
	Driver    string
	Writer    atomicfile.Writer
}

// Write writes the file of a request, and returns its mount. It may be repeated. request is that of the allocation's results, such as
// "gpus" or "gpus/large".
func (f Files) Write(claim *resourceapi.ResourceClaim, request string, devices []v1alpha1.Device) (*specs.Mount, error) {
	base := resourceclaim.BaseRequestRef(request)
	if claim.UID == "" || filepath.Base(string(claim.UID)) != string(claim.UID) || len(validation.IsDNS1123Label(base)) > 0 {
		return nil, fmt.Errorf("device metadata: claim %q, request %q: want a UID, and a DNS label", claim.UID, request)
	}
	object := v1alpha1.DeviceMetadata{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion.String(), Kind: "DeviceMetadata"},
		ObjectMeta: metav1.ObjectMeta{Name: claim.Name, Namespace: claim.Namespace, UID: claim.UID, Generation: 1},
		Requests:   []v1alpha1.DeviceMetadataRequest{{Name: request, Devices: devices}},
	}
	inside := metadata.ResourceClaimFilePath(f.Driver, claim.Name, base)
	// An annotation is text of the claim's author.
	if name := claim.Annotations[resourceapi.PodResourceClaimAnnotation]; len(validation.IsDNS1123Label(name)) == 0 {
		object.PodClaimName = &name
		inside = metadata.ResourceClaimTemplateFilePath(f.Driver, name, base)
	}
	text, err := json.Marshal(object)
	if err != nil {
		return nil, fmt.Errorf("device metadata of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	path := filepath.Join(f.Directory, string(claim.UID), base, metadata.MetadataFileName(f.Driver))
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return nil, fmt.Errorf("device metadata of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	if err := f.Writer.Write(path, append(text, '\n'), 0o644); err != nil {
		return nil, fmt.Errorf("device metadata of claim %s/%s: %w", claim.Namespace, claim.Name, err)
	}
	return &specs.Mount{HostPath: path, ContainerPath: inside, Options: []string{"ro", "bind", "nosuid", "nodev", "noexec"}}, nil
}

// Remove removes the files of a claim. It may be repeated.
func (f Files) Remove(claim types.UID) error {
	if claim == "" || filepath.Base(string(claim)) != string(claim) {
		return fmt.Errorf("device metadata: claim %q: want a UID", claim)
	}
	if err := os.RemoveAll(filepath.Join(f.Directory, string(claim))); err != nil {
		return fmt.Errorf("remove device metadata: %w", err)
	}
	return nil
}

// Keep removes the files of claims that are not among those to keep.
func (f Files) Keep(claims map[types.UID]bool) error {
	entries, err := os.ReadDir(f.Directory)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	errs := []error{err}
	for _, e := range entries {
		if claim := types.UID(e.Name()); !claims[claim] {
			errs = append(errs, f.Remove(claim))
		}
	}
	return errors.Join(errs...)
}
