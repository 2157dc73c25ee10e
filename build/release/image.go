package release

import (
	"fmt"
	"path/filepath"
	"strings"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"gpufabric.io/build/images"
)

// annotationTag is the key under which an OCI layout's index has the tag of a manifest.
const annotationTag = "org.opencontainers.image.ref.name"

// titles of the images, for their labels.
var titles = map[string]string{
	"gpufabric":           "GPU fabric of a Kubernetes cluster: NVLink compute domains, GPUs, RDMA pools and shares",
	"gpufabric-scheduler": "A scheduler that places shares of GPUs",
	"fakefabric":          "GPUs, NICs and IMEX that are not there, for test clusters only",
}

// images makes an OCI layout of each product, oci/NAME: an index of its architectures, under the version's tag, with signature and
// attestations.
func (r *Release) images() error {
	products, err := images.Products(r.Root)
	if err != nil {
		return err
	}
	for _, product := range products {
		if err := r.image(product); err != nil {
			return err
		}
	}
	return nil
}

func (r *Release) image(product images.Product) error {
	tag, err := name.NewTag(product.Name, name.StrictValidation)
	if err != nil {
		return err
	}
	short := product.ShortName()
	labels := r.labels(short)
	var records [][]byte
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, architecture := range r.Architectures {
		image, all, err := r.platform(product, architecture, labels)
		if err != nil {
			return err
		}
		digest, err := image.Digest()
		if err != nil {
			return err
		}
		purl := fmt.Sprintf("pkg:oci/%s@sha256:%s?arch=%s&repository_url=%s", short, digest.Hex, architecture, tag.Context().Name())
		record, err := r.record(fmt.Sprintf("%s_%s_image_linux_%s", short, r.Version, architecture), digest.Hex, purl, all)
		if err != nil {
			return err
		}
		records = append(records, record)
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: image,
			Descriptor: v1.Descriptor{Platform: &v1.Platform{OS: "linux", Architecture: architecture}}})
	}
	index = mutate.Annotations(index, labels).(v1.ImageIndex)
	digest, err := index.Digest()
	if err != nil {
		return err
	}
	r.digests[short] = digest
	path, err := layout.Write(filepath.Join(r.Out, "oci", short), empty.Index)
	if err != nil {
		return err
	}
	if err := path.AppendIndex(index, tagged(r.Version)); err != nil {
		return err
	}
	return r.seal(path, tag.Context().Name(), digest, records)
}

func tagged(tag string) layout.Option {
	return layout.WithAnnotations(map[string]string{annotationTag: tag})
}

// labels are what an image and its index say of themselves.
func (r *Release) labels(short string) map[string]string {
	const prefix = "org.opencontainers.image."
	return map[string]string{
		prefix + "title": short, prefix + "description": titles[short], prefix + "version": r.Version, prefix + "revision": r.Commit.Hash,
		prefix + "created": r.Commit.Time.Format("2006-01-02T15:04:05Z"), prefix + "source": Source, prefix + "url": Source,
		prefix + "documentation": Source + "/tree/v" + r.Version + "/docs", prefix + "licenses": "Apache-2.0", prefix + "vendor": "gpufabric",
	}
}

// platform is a product's image for one architecture: its programs, then licences, notices and package records.
func (r *Release) platform(product images.Product, architecture string, labels map[string]string) (v1.Image, []component, error) {
	image, err := product.Build(r.Root, architecture)
	if err != nil {
		return nil, nil, err
	}
	all, err := components(image, r.Lock, architecture)
	if err != nil {
		return nil, nil, err
	}
	files, err := r.documents("/usr/share/doc/"+product.ShortName()+"/", all)
	if err != nil {
		return nil, nil, err
	}
	for _, l := range libraries(all) {
		files = append(files, images.File{Path: "/var/lib/dpkg/status.d/" + l.Package, Content: l.record(), Mode: 0o644})
	}
	if len(libraries(all)) > 0 {
		files = append(files, images.File{Path: "/etc/os-release", Mode: 0o644, Content: []byte(
			"NAME=\"gpufabric\"\nPRETTY_NAME=\"gpufabric, with the C library of Debian 12\"\nID=debian\n" +
				"VERSION_ID=\"12\"\nVERSION_CODENAME=bookworm\n")})
	}
	layer, err := images.Layer(files...)
	if err != nil {
		return nil, nil, err
	}
	if image, err = mutate.AppendLayers(image, layer); err != nil {
		return nil, nil, err
	}
	config, err := image.ConfigFile()
	if err != nil {
		return nil, nil, err
	}
	config = config.DeepCopy()
	config.Config.Labels = labels
	config.Created = v1.Time{Time: r.Commit.Time}
	if image, err = mutate.ConfigFile(image, config); err != nil {
		return nil, nil, err
	}
	image = mutate.Annotations(image, labels).(v1.Image)
	whole, err := components(image, r.Lock, architecture)
	return image, whole, err
}

// signatureTag is the tag under which cosign looks for something of a digest: suffix sig for signatures, att for attestations.
func signatureTag(digest v1.Hash, suffix string) string {
	return strings.ReplaceAll(digest.String(), ":", "-") + "." + suffix
}
