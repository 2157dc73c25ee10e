package release

import (
	"archive/tar"
	"archive/zip"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// Compare lists what differs between two directories with a release, down to the file in an archive or an image: "PATH!MEMBER: how".
// The list is empty where the two are equal. It fails where one is no release: two empty directories would be equal.
func Compare(a, b string) ([]string, error) {
	for _, dir := range []string{a, b} {
		if _, err := os.Stat(filepath.Join(dir, "SHA256SUMS")); err != nil {
			return nil, fmt.Errorf("compare: %w: want the directory of a release, such as dist/0.1.0, which `make release` makes", err)
		}
	}
	left, err := expand(a)
	if err != nil {
		return nil, err
	}
	right, err := expand(b)
	if err != nil {
		return nil, err
	}
	var differences []string
	names := sortedKeys(left)
	for name := range right {
		if _, ok := left[name]; !ok {
			differences = append(differences, fmt.Sprintf("%s: only in %s", name, b))
		}
	}
	for _, name := range names {
		other, ok := right[name]
		switch {
		case !ok:
			differences = append(differences, fmt.Sprintf("%s: only in %s", name, a))
		case other != left[name]:
			differences = append(differences, fmt.Sprintf("%s: %s and %s", name, left[name], other))
		}
	}
	return differences, nil
}

// expand returns what a directory has, by name: a digest for a file, and for each member of an archive or an image its header and digest.
func expand(dir string) (map[string]string, error) {
	parts := map[string]string{}
	err := filepath.WalkDir(dir, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.IsDir() {
			return err
		}
		name, err := filepath.Rel(dir, path)
		if err != nil {
			return err
		}
		name = filepath.ToSlash(name)
		if strings.Contains("/"+name, "/blobs/sha256/") {
			return nil // named by their digests: layoutParts names them by what they are
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		info, err := entry.Info()
		if err != nil {
			return err
		}
		parts[name] = fmt.Sprintf("%s %s", info.Mode().Type(), hexSum(content))
		if entry.Name() == "index.json" {
			return layoutParts(parts, filepath.Dir(path), strings.TrimSuffix(name, "/index.json"), content)
		}
		return members(parts, name, content)
	})
	return parts, err
}

// members adds what an archive has.
func members(parts map[string]string, name string, content []byte) error {
	switch {
	case bytes.HasPrefix(content, []byte("PK\x03\x04")):
		archive, err := zip.NewReader(bytes.NewReader(content), int64(len(content)))
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		for _, file := range archive.File {
			r, err := file.Open()
			if err != nil {
				return fmt.Errorf("read %s of %s: %w", file.Name, name, err)
			}
			member, err := io.ReadAll(r)
			if err := errors.Join(err, r.Close()); err != nil {
				return fmt.Errorf("read %s of %s: %w", file.Name, name, err)
			}
			parts[name+"!"+file.Name] = fmt.Sprintf("%s %s %s", file.Mode(), file.Modified.UTC(), hexSum(member))
		}
	case bytes.HasPrefix(content, []byte("\x1f\x8b")):
		packed, err := gzip.NewReader(bytes.NewReader(content))
		if err != nil {
			return fmt.Errorf("read %s: %w", name, err)
		}
		for archive := tar.NewReader(packed); ; {
			header, err := archive.Next()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				return fmt.Errorf("read %s: %w", name, err)
			}
			member, err := io.ReadAll(archive)
			if err != nil {
				return fmt.Errorf("read %s of %s: %w", header.Name, name, err)
			}
			parts[name+"!"+header.Name] = fmt.Sprintf("%s %d:%d %s %s %s", header.FileInfo().Mode(), header.Uid, header.Gid,
				header.ModTime.UTC(), header.Linkname, hexSum(member))
		}
	}
	return nil
}

// descriptor is what of an OCI descriptor names its content.
type descriptor struct {
	Digest      string            `json:"digest"`
	MediaType   string            `json:"mediaType"`
	Annotations map[string]string `json:"annotations"`
	Platform    struct {
		Architecture string `json:"architecture"`
	} `json:"platform"`
}

// layoutParts adds what an OCI layout has below a manifest, by tag, architecture and number of the layer.
func layoutParts(parts map[string]string, dir, name string, manifest []byte) error {
	var content struct {
		Manifests []descriptor `json:"manifests"`
		Config    *descriptor  `json:"config"`
		Layers    []descriptor `json:"layers"`
	}
	if err := json.Unmarshal(manifest, &content); err != nil {
		return fmt.Errorf("read %s: %w", name, err)
	}
	blob := func(d descriptor, as string) ([]byte, error) {
		_, digits, _ := strings.Cut(d.Digest, ":")
		text, err := os.ReadFile(filepath.Join(dir, "blobs/sha256", path.Base(digits)))
		parts[as] = d.Digest
		return text, err
	}
	for _, d := range content.Manifests {
		as := name + "!" + d.Annotations[annotationTag] + d.Platform.Architecture
		if strings.HasPrefix(d.Annotations[annotationTag], "sha256-") {
			as = name + "!" + strings.TrimPrefix(path.Ext(d.Annotations[annotationTag]), ".")
		}
		text, err := blob(d, as)
		if err != nil {
			return err
		}
		if err := layoutParts(parts, dir, as, text); err != nil {
			return err
		}
	}
	if content.Config != nil {
		if _, err := blob(*content.Config, name+"!config"); err != nil {
			return err
		}
	}
	for i, d := range content.Layers {
		as := fmt.Sprintf("%s!layer%d", name, i)
		text, err := blob(d, as)
		if err != nil {
			return err
		}
		if err := members(parts, as, text); err != nil {
			return err
		}
	}
	return nil
}
