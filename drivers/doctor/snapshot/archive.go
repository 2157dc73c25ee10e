package snapshot

import (
	"archive/tar"
	"compress/gzip"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"
)

const (
	// maxArchive bounds the size of an archive before compression. 1,008 nodes of 4 GPUs in every form are about 60 MiB.
	maxArchive = 256 << 20
	// format is the first field of the index; an unknown format is not read.
	format = "gpufabric.io/bundle/v1"
	// indexFile is the archive's first file.
	indexFile = "bundle.json"
)

// archiveIndex is the archive's first file.
type archiveIndex struct {
	Format  string   `json:"format"`
	Server  Server   `json:"server"`
	Unread  []Unread `json:"unread"`
	Release Release  `json:"release,omitzero"`
	// Kinds are the files that follow, by the resource's name.
	Kinds []string `json:"kinds"`
}

// part is a kind's file in an archive.
type part struct {
	kind string
	list any // pointer to the Snapshot's field
}

func (s *Snapshot) parts() []part {
	return []part{
		{"nodes", &s.Nodes}, {"resourceslices.resource.k8s.io", &s.Slices}, {"deviceclasses.resource.k8s.io", &s.Classes},
		{"resourceclaims.resource.k8s.io", &s.Claims}, {"resourceclaimtemplates.resource.k8s.io", &s.Templates}, {"pods", &s.Pods},
		{"daemonsets.apps", &s.DaemonSets}, {"deployments.apps", &s.Deployments},
		{"customresourcedefinitions.apiextensions.k8s.io", &s.CRDs},
		{"validatingwebhookconfigurations.admissionregistration.k8s.io", &s.Webhooks},
		{"computedomains.resource.nvidia.com", &s.Domains}, {"rdmapools.gpufabric.io", &s.RDMAPools}, {"miglayouts.gpufabric.io", &s.MIGLayouts},
		{"vgpuprofiles.gpufabric.io", &s.VGPUProfiles}, {"resourcequotas", &s.Quotas}, {"namespaces", &s.Namespaces},
		{bindings, &s.Bindings}, {"leases.coordination.k8s.io", &s.Leases}, {"events", &s.Events},
	}
}

// File is a further file of an archive, such as a pod's log.
type File struct {
	Name    string
	Content []byte
}

// Save writes an archive: a tar file, compressed with gzip, with the index, a JSON file for each kind, and further files. It omits
// the API server's address.
func (s *Snapshot) Save(to io.Writer, files []File) error {
	index := archiveIndex{Format: format, Server: s.Server, Unread: s.Unread, Release: s.Release}
	index.Server.URL = ""
	size := 0
	var content []File
	for _, p := range s.parts() {
		body, err := json.Marshal(p.list)
		if err != nil {
			return fmt.Errorf("write %s: %w", p.kind, err)
		}
		body = s.withoutAddresses(body)
		if size += len(body); size > maxArchive {
			size -= len(body)
			index.Unread = append(index.Unread, Unread{Kind: p.kind, Verb: "list", Why: Bounded,
				Message: fmt.Sprintf("left out, because an archive holds at most %d MiB", maxArchive>>20)})
			continue
		}
		index.Kinds = append(index.Kinds, p.kind)
		content = append(content, File{p.kind + ".json", body})
	}
	head, err := json.MarshalIndent(index, "", "  ")
	if err != nil {
		return fmt.Errorf("write the index: %w", err)
	}
	content = append([]File{{indexFile, s.withoutAddresses(head)}}, content...)
	for _, f := range files {
		f.Content = s.withoutAddresses(f.Content)
		if size += len(f.Content); size > maxArchive {
			break
		}
		content = append(content, f)
	}
	compressed := gzip.NewWriter(to)
	archive := tar.NewWriter(compressed)
	for _, f := range content {
		header := &tar.Header{Name: f.Name, Mode: 0o600, Size: int64(len(f.Content)), ModTime: s.Server.Taken.Truncate(time.Second)}
		if err := archive.WriteHeader(header); err != nil {
			return fmt.Errorf("write %s: %w", f.Name, err)
		}
		if _, err := archive.Write(f.Content); err != nil {
			return fmt.Errorf("write %s: %w", f.Name, err)
		}
	}
	return errors.Join(archive.Close(), compressed.Close())
}

// Load reads an archive whose objects take at most most bytes of memory; 0: MaxMemory. A truncated archive gives what comes before its end;
// the rest is in Unread. The error is a *TooLargeError for an archive that would take more.
func Load(from io.Reader, most int64) (*Snapshot, error) {
	compressed, err := gzip.NewReader(from)
	if err != nil {
		return nil, fmt.Errorf("this is not an archive of gpufabric doctor bundle: %w", err)
	}
	archive := tar.NewReader(io.LimitReader(compressed, maxArchive+maxArchive/4))
	s := &Snapshot{}
	if most == 0 {
		most = MaxMemory
	}
	memory := budget{left: most, most: most}
	index, err := s.head(archive)
	if err != nil {
		return nil, err
	}
	came := map[string]bool{}
	var cut error
	for cut == nil {
		var header *tar.Header
		if header, cut = archive.Next(); cut != nil {
			break
		}
		for _, p := range s.parts() {
			if p.kind+".json" != header.Name {
				continue
			}
			err := memory.decode(archive, p.list)
			var tooLarge *TooLargeError
			if errors.As(err, &tooLarge) {
				tooLarge.File = header.Name
				return nil, tooLarge
			}
			if cut = err; err == nil {
				came[p.kind] = true
			}
		}
	}
	for _, kind := range index.Kinds {
		if !came[kind] {
			s.Unread = append(s.Unread, Unread{Kind: kind, Verb: "read", Why: Cut, Message: fmt.Sprintf("the archive ends before it: %v", cut)})
		}
	}
	return s, nil
}

// head reads the index.
func (s *Snapshot) head(archive *tar.Reader) (index archiveIndex, err error) {
	header, err := archive.Next()
	if err != nil || header.Name != indexFile {
		return index, fmt.Errorf("this is not an archive of gpufabric doctor bundle, or it was cut before its index: %w", errors.Join(err,
			io.ErrUnexpectedEOF))
	}
	body, err := io.ReadAll(io.LimitReader(archive, maxObject))
	if parts(body) > maxParts {
		return index, &TooLargeError{File: indexFile, Why: fmt.Sprintf("it has more than %d parts", maxParts)}
	}
	if err == nil {
		err = json.Unmarshal(body, &index)
	}
	if err != nil {
		return index, fmt.Errorf("read the archive's index: %w", err)
	}
	if index.Format != format {
		return index, fmt.Errorf("the archive's format is %q, and this program reads %s: use the program of the version that wrote it",
			strings.ToValidUTF8(index.Format[:min(len(index.Format), 80)], ""), format)
	}
	s.Server, s.Unread, s.Release = index.Server, index.Unread, index.Release
	return index, nil
}
