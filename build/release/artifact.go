package release

import (
	"bytes"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/partial"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// artifact is an OCI manifest whose configuration is none of an image's.
type artifact struct {
	config, manifest []byte
	layers           map[v1.Hash]v1.Layer
}

func newArtifact(config []byte, configType types.MediaType, annotations map[string]string, layers []mutate.Addendum) (v1.Image, error) {
	sum, size, err := v1.SHA256(bytes.NewReader(config))
	if err != nil {
		return nil, err
	}
	a := &artifact{config: config, layers: map[v1.Hash]v1.Layer{}}
	manifest := v1.Manifest{SchemaVersion: 2, MediaType: types.OCIManifestSchema1, Annotations: annotations,
		Config: v1.Descriptor{MediaType: configType, Size: size, Digest: sum}}
	for _, addendum := range layers {
		descriptor, err := partial.Descriptor(addendum.Layer)
		if err != nil {
			return nil, err
		}
		manifest.Layers = append(manifest.Layers, *descriptor)
		a.layers[descriptor.Digest] = addendum.Layer
	}
	if a.manifest, err = json.Marshal(manifest); err != nil {
		return nil, err
	}
	return partial.CompressedToImage(a)
}

func (a *artifact) RawConfigFile() ([]byte, error)      { return a.config, nil }
func (a *artifact) RawManifest() ([]byte, error)        { return a.manifest, nil }
func (a *artifact) MediaType() (types.MediaType, error) { return types.OCIManifestSchema1, nil }

// LayerByDigest returns the configuration too, as partial.CompressedImageCore asks.
func (a *artifact) LayerByDigest(digest v1.Hash) (partial.CompressedLayer, error) {
	if layer := a.layers[digest]; layer != nil {
		return layer, nil
	}
	return nil, fmt.Errorf("the artifact has no layer %s", digest)
}
