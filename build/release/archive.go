package release

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"errors"
	"io/fs"
	"os"
	"time"

	"gpufabric.io/build/images"
)

// tarball packs files and no links, which krew does not unpack, in their order, with times of the commit, root's ownership and the modes
// that they state.
func tarball(files []images.File, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	packed, err := gzip.NewWriterLevel(&out, gzip.BestCompression)
	if err != nil {
		return nil, err
	}
	packed.OS = 255 // unknown
	archive := tar.NewWriter(packed)
	for _, file := range files {
		content, err := read(file)
		if err != nil {
			return nil, err
		}
		header := &tar.Header{Typeflag: tar.TypeReg, Name: file.Path, Mode: mode(file), Size: int64(len(content)), ModTime: at}
		if err := archive.WriteHeader(header); err != nil {
			return nil, err
		}
		if _, err := archive.Write(content); err != nil {
			return nil, err
		}
	}
	err = errors.Join(archive.Close(), packed.Close())
	return out.Bytes(), err
}

// zipped packs files as tarball does.
func zipped(files []images.File, at time.Time) ([]byte, error) {
	var out bytes.Buffer
	archive := zip.NewWriter(&out)
	for _, file := range files {
		content, err := read(file)
		if err != nil {
			return nil, err
		}
		header := &zip.FileHeader{Name: file.Path, Method: zip.Deflate, Modified: at}
		header.SetMode(permissions(file))
		w, err := archive.CreateHeader(header)
		if err != nil {
			return nil, err
		}
		if _, err := w.Write(content); err != nil {
			return nil, err
		}
	}
	err := archive.Close()
	return out.Bytes(), err
}

// read returns what a file has.
func read(file images.File) ([]byte, error) {
	if file.From != "" {
		return os.ReadFile(file.From)
	}
	return file.Content, nil
}

func mode(file images.File) int64 {
	if file.Mode == 0 {
		return 0o755
	}
	return file.Mode
}

func permissions(file images.File) fs.FileMode { return fs.FileMode(mode(file)) }
