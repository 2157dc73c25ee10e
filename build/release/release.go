package release

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"gpufabric.io/build/images"
)

// Release is a release in the making.
type Release struct {
	Version       string
	Commit        Commit
	Root          string // the exported commit, in which everything is built
	Out           string // a directory, which gets everything
	Keys          *Keys  // nil: nothing is signed
	Texts         Texts
	Lock          Lock
	Architectures []string   // of images and archives
	Platforms     []Platform // of the provider
	Tools         map[string]string

	digests map[string]v1.Hash // of what is in oci/, by its path there
}

// Assemble makes the release of what was built in Root.
func (r *Release) Assemble(ctx context.Context, progress func(string)) error {
	r.digests = map[string]v1.Hash{}
	for _, step := range []struct {
		name string
		do   func() error
	}{
		{"images", r.images},
		{"charts", r.charts},
		{"archives of gpufabric and fakefabric", r.archives},
		{"Terraform provider", r.provider},
		{"manifest for krew", r.krew},
		{"public keys", r.publicKeys},
		{"provenance", r.provenance},
		{"checksums", r.checksums},
	} {
		progress(step.name)
		if err := context.Cause(ctx); err != nil {
			return err
		}
		if err := step.do(); err != nil {
			return fmt.Errorf("%s: %w", step.name, err)
		}
	}
	return nil
}

// write writes a file of the release.
func (r *Release) write(name string, content []byte) error {
	path := filepath.Join(r.Out, name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, content, 0o644)
}

// record writes the SPDX record of an artifact.
func (r *Release) record(name, digest, purl string, all []component) ([]byte, error) {
	record, err := r.sbom(name, digest, purl, all)
	if err != nil {
		return nil, err
	}
	return record, r.write("sbom/"+name+".spdx.json", record)
}

// binary returns the path of a program in Root, as images.Product takes it.
func (r *Release) binary(dir, architecture, name string) string {
	path := filepath.Join(r.Root, dir, name)
	if _, err := os.Stat(filepath.Join(r.Root, dir, architecture)); err == nil {
		path = filepath.Join(r.Root, dir, architecture, name)
	}
	return path
}

// archives packs gpufabric, which krew installs as kubectl's plugin, and fakefabric with its libraries.
func (r *Release) archives() error {
	for _, architecture := range r.Architectures {
		program := images.File{Path: "gpufabric", From: r.binary("bin", architecture, "gpufabric")}
		if err := r.archive("gpufabric", architecture, program); err != nil {
			return err
		}
		files := []images.File{{Path: "fakefabric", From: r.binary("fakes/build", architecture, "fakefabric")}}
		libraries, err := filepath.Glob(filepath.Join(filepath.Dir(files[0].From), "lib", "*"))
		if err != nil {
			return err
		}
		for _, library := range libraries {
			files = append(files, images.File{Path: "lib/" + filepath.Base(library), From: library})
		}
		if err := r.archive("fakefabric", architecture, files...); err != nil {
			return err
		}
	}
	return nil
}

func (r *Release) archiveName(name, architecture string) string {
	return fmt.Sprintf("%s_%s_linux_%s.tar.gz", name, r.Version, architecture)
}

func (r *Release) archive(name, architecture string, files ...images.File) error {
	all, err := fileComponents(files, r.Lock, architecture)
	if err != nil {
		return err
	}
	documents, err := r.documents("", all)
	if err != nil {
		return err
	}
	packed, err := tarball(append(files, documents...), r.Commit.Time)
	if err != nil {
		return err
	}
	file := r.archiveName(name, architecture)
	if _, err := r.record(file, hexSum(packed), "", all); err != nil {
		return err
	}
	return r.write(file, packed)
}

// documents are the project's licence and the notices of components, below dir.
func (r *Release) documents(dir string, all []component) ([]images.File, error) {
	licence, err := os.ReadFile(filepath.Join(r.Root, "LICENSE"))
	if err != nil {
		return nil, err
	}
	notices, err := r.Texts.notices(all)
	if err != nil {
		return nil, err
	}
	return []images.File{
		{Path: dir + "LICENSE", Content: licence, Mode: 0o644},
		{Path: dir + "THIRD-PARTY-NOTICES", Content: notices, Mode: 0o644},
	}, nil
}

func (r *Release) publicKeys() error {
	if r.Keys == nil {
		return nil
	}
	public, err := r.Keys.Public()
	if err != nil {
		return err
	}
	armored, ring, err := r.Keys.PublicPGP()
	if err != nil {
		return err
	}
	return errors.Join(r.write("signing.pub", public), r.write("openpgp.pub.asc", armored), r.write("openpgp.gpg", ring))
}

// checksums lists every file of the release but itself, as sha256sum does.
func (r *Release) checksums() error {
	sums, err := r.sums()
	if err != nil {
		return err
	}
	var text strings.Builder
	for _, name := range sortedKeys(sums) {
		fmt.Fprintf(&text, "%s  %s\n", sums[name], name)
	}
	if err := r.write("SHA256SUMS", []byte(text.String())); err != nil || r.Keys == nil {
		return err
	}
	signature, err := r.Keys.Sign([]byte(text.String()))
	if err != nil {
		return err
	}
	return r.write("SHA256SUMS.sig", signature)
}

// sums are the SHA-256 of the files that the release has so far, by their path.
func (r *Release) sums() (map[string]string, error) {
	sums := map[string]string{}
	err := filepath.WalkDir(r.Out, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(r.Out, path)
		sums[filepath.ToSlash(name)] = hexSum(content)
		return err
	})
	return sums, err
}

// krew writes the manifest of kubectl's plugin for krew's index.
func (r *Release) krew() error {
	var platforms strings.Builder
	for _, architecture := range slices.Sorted(slices.Values(r.Architectures)) {
		file := r.archiveName("gpufabric", architecture)
		content, err := os.ReadFile(filepath.Join(r.Out, file))
		if err != nil {
			return err
		}
		fmt.Fprintf(&platforms, `  - selector:
      matchLabels: {os: linux, arch: %s}
    uri: %s/releases/download/v%s/%s
    sha256: %s
    files:
      - {from: gpufabric, to: kubectl-gpufabric}
      - {from: LICENSE, to: .}
      - {from: THIRD-PARTY-NOTICES, to: .}
    bin: kubectl-gpufabric
`, architecture, Source, r.Version, file, hexSum(content))
	}
	return r.write("krew/gpufabric.yaml", fmt.Appendf(nil, `apiVersion: krew.googlecontainertools.github.com/v1alpha2
kind: Plugin
metadata:
  name: gpufabric
spec:
  version: v%s
  homepage: %s
  shortDescription: Find why GPU claims, compute domains and RDMA wait
  description: |
    Names the first cause of a pod, claim, compute domain or pool that waits or is broken, and shows the
    topology of the cluster's GPU fabric. It needs the gpufabric drivers in the cluster.
  platforms:
%s`, r.Version, Source, platforms.String()))
}
