package release

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/remote/transport"
)

// item is a manifest of a release, and the tag that it gets.
type item struct {
	content    remote.Taggable
	digest     v1.Hash
	repository name.Repository
	tag        string
}

func (i item) reference() name.Tag { return i.repository.Tag(i.tag) }

// answered is how long a registry may take to answer a request that it has whole. It stores tens of megabytes meanwhile.
const answered = 2 * time.Minute

// Push uploads what is in a release's oci/ to a registry, below a path such as ghcr.io/gpufabric: first all content by its digests, then
// the tags of signatures, at last those of versions, charts after images. A registry that fails before leaves no tag. Push may be
// repeated: it uploads what is missing. It moves no tag that names something else.
func Push(ctx context.Context, dir, registry string, progress func(string), options ...name.Option) error {
	return push(ctx, dir, registry, progress, answered, options...)
}

func push(ctx context.Context, dir, registry string, progress func(string), answered time.Duration, options ...name.Option) error {
	items, err := plan(dir, registry, options)
	if err != nil {
		return err
	}
	bounded := http.DefaultTransport.(*http.Transport).Clone()
	bounded.ResponseHeaderTimeout = answered
	with := []remote.Option{remote.WithContext(ctx), remote.WithAuthFromKeychain(authn.DefaultKeychain), remote.WithTransport(bounded)}
	missing, err := untagged(items, with)
	if err != nil {
		return err
	}
	for _, one := range items {
		progress(fmt.Sprintf("%s@%s", one.repository, one.digest))
		err := upload(one, with)
		if err == nil {
			err = stored(one.repository.Digest(one.digest.String()), one.digest, with)
		}
		if err != nil {
			return fmt.Errorf("upload %s@%s: %w; no tag was set: run it again when the registry is well", one.repository, one.digest, err)
		}
	}
	for i, one := range missing {
		progress(one.reference().String())
		err := remote.Tag(one.reference(), one.content, with...)
		if err == nil {
			err = stored(one.reference(), one.digest, with)
		}
		if err != nil {
			return fmt.Errorf("tag %s: %w; all content is there, and %d of %d tags are not set yet: run it again", one.reference(), err,
				len(missing)-i, len(missing))
		}
	}
	return nil
}

// plan lists the manifests of all layouts in the order of their tags.
func plan(dir, registry string, options []name.Option) ([]item, error) {
	if strings.Contains(registry, "://") {
		return nil, fmt.Errorf("REGISTRY=%s: want a host and a path without a scheme, such as ghcr.io/gpufabric", registry)
	}
	root := filepath.Join(dir, "oci")
	var items []item
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == root {
			return nil
		}
		if err != nil || entry.Name() != "oci-layout" {
			return err
		}
		below, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		repository, err := name.NewRepository(strings.TrimSuffix(registry, "/")+"/"+filepath.ToSlash(below),
			append(options, name.StrictValidation)...)
		if err != nil {
			return fmt.Errorf("REGISTRY=%s: want a host and a path, such as ghcr.io/gpufabric: %w", registry, err)
		}
		found, err := layoutItems(filepath.Dir(path), repository)
		items = append(items, found...)
		return err
	})
	if err != nil {
		return nil, err
	}
	if len(items) == 0 {
		return nil, fmt.Errorf("%s has no OCI layout: name the directory of a release, such as dist/0.1.0, which `make release` makes", root)
	}
	slices.SortStableFunc(items, func(a, b item) int { return rank(a) - rank(b) })
	return items, nil
}

// rank orders tags: signatures and attestations, then images, then charts, which name the images.
func rank(i item) int {
	switch {
	case strings.HasPrefix(i.tag, "sha256-"):
		return 0
	case !strings.Contains(i.repository.RepositoryStr(), "charts/"):
		return 1
	default:
		return 2
	}
}

func layoutItems(path string, repository name.Repository) ([]item, error) {
	if err := intact(path); err != nil {
		return nil, err
	}
	index, err := layout.ImageIndexFromPath(path)
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, fmt.Errorf("read %s: %w", path, err)
	}
	var items []item
	for _, descriptor := range manifest.Manifests {
		one := item{digest: descriptor.Digest, repository: repository, tag: descriptor.Annotations[annotationTag]}
		if one.tag == "" {
			return nil, fmt.Errorf("%s: %s has no annotation %s", path, descriptor.Digest, annotationTag)
		}
		if descriptor.MediaType.IsIndex() {
			one.content, err = index.ImageIndex(descriptor.Digest)
		} else {
			one.content, err = index.Image(descriptor.Digest)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %s: %w", path, descriptor.Digest, err)
		}
		items = append(items, one)
	}
	return items, nil
}

// intact reports a layout's blobs whose content has another digest than their name. It does not rely on registries: some store a manifest
// under the digest that the request names.
func intact(path string) error {
	blobs, err := filepath.Glob(filepath.Join(path, "blobs/sha256/*"))
	var errs []error
	for _, blob := range blobs {
		digest, err := fileDigest(blob)
		if err == nil && digest.Hex != filepath.Base(blob) {
			err = fmt.Errorf("%s has the digest %s: make the release again, or copy it again", blob, digest)
		}
		errs = append(errs, err)
	}
	return errors.Join(append(errs, err)...)
}

func fileDigest(path string) (v1.Hash, error) {
	file, err := os.Open(path)
	if err != nil {
		return v1.Hash{}, err
	}
	defer func() { _ = file.Close() }()
	digest, _, err := v1.SHA256(file)
	return digest, err
}

// untagged are the items whose tag the registry does not have. It fails for tags that name something else: a version is published once.
func untagged(items []item, with []remote.Option) ([]item, error) {
	var missing []item
	var errs []error
	for _, one := range items {
		have, err := remote.Head(one.reference(), with...)
		switch {
		case err == nil && have.Digest != one.digest:
			errs = append(errs, fmt.Errorf("%s exists and is %s, not %s: a published version is not replaced; choose the next one",
				one.reference(), have.Digest, one.digest))
		case err == nil:
		case answeredWith(err, http.StatusNotFound):
			missing = append(missing, one)
		case answeredWith(err, http.StatusUnauthorized, http.StatusForbidden):
			return nil, fmt.Errorf("look for %s: %w; nothing was pushed: run `docker login %s` as a user who may push there", one.reference(), err,
				one.repository.RegistryStr())
		default:
			return nil, fmt.Errorf("look for %s: %w; nothing was pushed: run it again when the registry is well", one.reference(), err)
		}
	}
	return missing, errors.Join(errs...)
}

func answeredWith(err error, statuses ...int) bool {
	var refused *transport.Error
	return errors.As(err, &refused) && slices.Contains(statuses, refused.StatusCode)
}

// stored asks for what the registry has accepted: some accept what they do not keep.
func stored(reference name.Reference, digest v1.Hash, with []remote.Option) error {
	have, err := remote.Head(reference, with...)
	if answeredWith(err, http.StatusNotFound) {
		return fmt.Errorf("the registry accepted %s and does not have it", reference)
	}
	if err == nil && have.Digest != digest {
		err = fmt.Errorf("the registry accepted %s as %s and has %s", reference, digest, have.Digest)
	}
	return err
}

// upload puts a manifest and all that it names into the registry, without a tag.
func upload(one item, with []remote.Option) error {
	digest := one.repository.Digest(one.digest.String())
	switch content := one.content.(type) {
	case v1.ImageIndex:
		return remote.WriteIndex(digest, content, with...)
	case v1.Image:
		return remote.Write(digest, content, with...)
	default:
		return fmt.Errorf("a layout has %T", content)
	}
}
