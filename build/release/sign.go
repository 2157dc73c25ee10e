package release

import (
	"encoding/base64"
	"encoding/json"
	"fmt"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/static"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// Media types and annotations of cosign's signatures and attestations beside an image (sigstore/cosign, specs/SIGNATURE_SPEC.md and
// specs/ATTESTATION_SPEC.md).
const (
	simpleSigning       = types.MediaType("application/vnd.dev.cosign.simplesigning.v1+json")
	dsseEnvelope        = types.MediaType("application/vnd.dsse.envelope.v1+json")
	annotationSignature = "dev.cosignproject.cosign/signature"
	statementType       = "application/vnd.in-toto+json"
	spdxPredicate       = "https://spdx.dev/Document"
	slsaPredicate       = "https://slsa.dev/provenance/v1"
)

// seal signs what a digest names in a layout, and adds attestations of its records and of its origin. Without keys it adds nothing.
func (r *Release) seal(path layout.Path, repository string, digest v1.Hash, records [][]byte) error {
	if r.Keys == nil {
		return nil
	}
	payload, err := json.Marshal(map[string]any{
		"critical": map[string]any{
			"identity": map[string]any{"docker-reference": repository},
			"image":    map[string]any{"docker-manifest-digest": digest.String()},
			"type":     "cosign container image signature",
		},
		"optional": nil,
	})
	if err != nil {
		return err
	}
	signature, err := r.Keys.Sign(payload)
	if err != nil {
		return err
	}
	signed, err := enclose(mutate.Addendum{Layer: static.NewLayer(payload, simpleSigning),
		Annotations: map[string]string{annotationSignature: base64.StdEncoding.EncodeToString(signature)}})
	if err != nil {
		return err
	}
	if err := path.AppendImage(signed, tagged(signatureTag(digest, "sig"))); err != nil {
		return err
	}
	subjects := []subject{{Name: repository, Digest: map[string]string{"sha256": digest.Hex}}}
	var layers []mutate.Addendum
	attest := func(predicateType string, predicate any) error {
		envelope, err := r.envelope(statement{Type: inToto, PredicateType: predicateType, Subject: subjects, Predicate: predicate})
		layers = append(layers, mutate.Addendum{Layer: static.NewLayer(envelope, dsseEnvelope),
			Annotations: map[string]string{annotationSignature: "", "predicateType": predicateType}})
		return err
	}
	for _, record := range records {
		if err := attest(spdxPredicate, json.RawMessage(record)); err != nil {
			return err
		}
	}
	if err := attest(slsaPredicate, r.origin()); err != nil {
		return err
	}
	attested, err := enclose(layers...)
	if err != nil {
		return err
	}
	return path.AppendImage(attested, tagged(signatureTag(digest, "att")))
}

// enclose makes an OCI manifest of layers.
func enclose(layers ...mutate.Addendum) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	return mutate.Append(image, layers...)
}

// envelope signs a statement as DSSE (github.com/secure-systems-lab/dsse, protocol.md).
func (r *Release) envelope(s statement) ([]byte, error) {
	payload, err := json.Marshal(s)
	if err != nil {
		return nil, err
	}
	signature, err := r.Keys.Sign(fmt.Appendf(nil, "DSSEv1 %d %s %d %s", len(statementType), statementType, len(payload), payload))
	if err != nil {
		return nil, err
	}
	return json.Marshal(map[string]any{
		"payloadType": statementType, "payload": base64.StdEncoding.EncodeToString(payload),
		"signatures": []map[string]string{{"keyid": "", "sig": base64.StdEncoding.EncodeToString(signature)}},
	})
}
