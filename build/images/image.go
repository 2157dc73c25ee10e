// Package images builds container images in Go, from files on this machine: no image builder, no base image, no registry is needed.
package images

import (
	"archive/tar"
	"fmt"
	"io"
	"os"
	"path"
	"sort"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
)

// File is one entry of a layer: a copy of From, or Content, or a symbolic link to Link.
type File struct {
	Path    string // absolute, in the image
	Mode    int64  // permission bits; 0 means 0755
	From    string
	Content []byte
	Link    string
}

// Layer packs files, with their parent directories, into a layer. The same files always give the same digest.
func Layer(files ...File) (v1.Layer, error) {
	return tarball.LayerFromOpener(func() (io.ReadCloser, error) {
		r, w := io.Pipe()
		go func() { w.CloseWithError(writeTar(w, files)) }()
		return r, nil
	}, tarball.WithCompressedCaching, tarball.WithMediaType(types.OCILayer))
}

func writeTar(w io.Writer, files []File) error {
	sorted := append([]File(nil), files...)
	sort.Slice(sorted, func(i, j int) bool { return sorted[i].Path < sorted[j].Path })
	archive := tar.NewWriter(w)
	made := map[string]bool{".": true}
	for _, file := range sorted {
		name := strings.TrimPrefix(path.Clean(file.Path), "/")
		if err := writeParents(archive, path.Dir(name), made); err != nil {
			return err
		}
		if err := Write(archive, name, file); err != nil {
			return fmt.Errorf("add %s to an image: %w", file.Path, err)
		}
	}
	return archive.Close()
}

func writeParents(archive *tar.Writer, dir string, made map[string]bool) error {
	if made[dir] {
		return nil
	}
	made[dir] = true
	if err := writeParents(archive, path.Dir(dir), made); err != nil {
		return err
	}
	return archive.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755})
}

// Write adds a file to an archive under a name of the archive's own.
func Write(archive *tar.Writer, name string, file File) error {
	header := &tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: file.Mode}
	if header.Mode == 0 {
		header.Mode = 0o755
	}
	switch {
	case file.Link != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, file.Link
		return archive.WriteHeader(header)
	case file.From != "":
		source, err := os.Open(file.From)
		if err != nil {
			return err
		}
		defer func() { _ = source.Close() }()
		info, err := source.Stat()
		if err != nil {
			return err
		}
		header.Size = info.Size()
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err = io.Copy(archive, source)
		return err
	default:
		header.Size = int64(len(file.Content))
		if err := archive.WriteHeader(header); err != nil {
			return err
		}
		_, err := archive.Write(file.Content)
		return err
	}
}

// New returns an image of the layers for linux on the given architecture (amd64 or arm64).
func New(architecture string, config v1.Config, layers ...v1.Layer) (v1.Image, error) {
	image := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	image, err := mutate.AppendLayers(image, layers...)
	if err != nil {
		return nil, err
	}
	whole, err := image.ConfigFile()
	if err != nil {
		return nil, err
	}
	whole = whole.DeepCopy()
	whole.OS, whole.Architecture = "linux", architecture
	if config.Env == nil {
		config.Env = []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	}
	whole.Config = config
	return mutate.ConfigFile(image, whole)
}
