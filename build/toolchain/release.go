package toolchain

import (
	"archive/tar"
	"archive/zip"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
)

// release reports where a project publishes a tool as a file, and the file's checksum. In its texts {version} stands for v1.36.3,
// {number} for 1.36.3 and {arch} for amd64 or arm64; every file is for Linux.
type release struct {
	directory string // URL of the version's files
	file      string // in the directory: a .tar.gz, a .zip, or the tool itself
	sums      string // in the directory: "<sha256>  <file>" a line, or one checksum alone
	member    string // path of the tool in the archive; empty where the file is the tool
}

// The limits of downloads from a site.
const (
	largestSums = 1 << 20
	largestFile = 1 << 30
)

func kubernetesRelease(name string) release {
	return release{directory: "https://dl.k8s.io/release/{version}/bin/linux/{arch}", file: name, sums: name + ".sha256"}
}

func githubRelease(repository, file, sums, member string) release {
	return release{directory: "https://github.com/" + repository + "/releases/download/{version}", file: file, sums: sums, member: member}
}

// published reports whether the tool's project publishes a file.
func (t Tool) published() bool { return t.release.directory != "" }

// fill writes version and architecture into a text of the release.
func (t Tool) fill(text, arch string) string {
	return strings.NewReplacer("{version}", t.Version, "{number}", strings.TrimPrefix(t.Version, "v"), "{arch}", arch).Replace(text)
}

func (t Tool) fileURL(arch string) string {
	return t.fill(t.release.directory+"/"+t.release.file, arch)
}

func (t Tool) sumsURL(arch string) string {
	return t.fill(t.release.directory+"/"+t.release.sums, arch)
}

// fetch writes the tool to target from its published file. It verifies the file with the lock where there is one, else with the
// checksum beside the file. After an error it leaves nothing at target that could be mistaken for the tool.
func (s *sites) fetch(ctx context.Context, t Tool, target string, line progress) error {
	from := t.fileURL(runtime.GOARCH)
	sum, err := s.checksum(ctx, t, runtime.GOARCH)
	if err != nil {
		return err
	}
	fetched := target + ".fetched"
	defer func() { _ = os.Remove(fetched) }()
	got, err := s.download(ctx, from, fetched, line)
	if err != nil {
		return err
	}
	if got != sum {
		return fmt.Errorf("%s has the SHA-256 %s where %s is published: the file is refused", s.place(from), got, sum)
	}
	if err := unpack(fetched, t.fill(t.release.file, runtime.GOARCH), t.fill(t.release.member, runtime.GOARCH), target); err != nil {
		return err
	}
	if why := t.refuse(ctx, target); why != "" {
		_ = os.Remove(target)
		return fmt.Errorf("what %s holds %s, and %s is wanted", s.place(from), why, t.Version)
	}
	return nil
}

// checksum returns the SHA-256 that the tool's file must have, in hexadecimal.
func (s *sites) checksum(ctx context.Context, t Tool, arch string) (string, error) {
	if s.lock != nil {
		sum, ok := s.lock[t.fileURL(arch)]
		if !ok {
			return "", fmt.Errorf("%s has no line for %s; `make toolchain-lock` writes it", LockName, t.fileURL(arch))
		}
		return sum, nil
	}
	return s.publishedChecksum(ctx, t, arch)
}

// publishedChecksum reads the checksum in the file beside the release file.
func (s *sites) publishedChecksum(ctx context.Context, t Tool, arch string) (string, error) {
	text, err := s.read(ctx, t.sumsURL(arch), largestSums)
	if err != nil {
		return "", err
	}
	sum := findChecksum(text, path.Base(t.fill(t.release.file, arch)))
	if sum == "" {
		return "", fmt.Errorf("%s has no SHA-256 of %s", s.place(t.sumsURL(arch)), t.fill(t.release.file, arch))
	}
	return sum, nil
}

var sha256Pattern = regexp.MustCompile(`^[0-9a-f]{64}$`)

// findChecksum finds the checksum of a file in either common form: a line "<sha256>  <file>" for each file, or a single checksum.
func findChecksum(text, file string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	for _, line := range lines {
		fields := strings.Fields(strings.ToLower(line))
		switch {
		case len(fields) == 1 && len(lines) == 1 && sha256Pattern.MatchString(fields[0]):
			return fields[0]
		case len(fields) == 2 && sha256Pattern.MatchString(fields[0]) && path.Base(strings.TrimPrefix(fields[1], "*")) == strings.ToLower(file):
			return fields[0]
		}
	}
	return ""
}

// unpack writes the tool out of a fetched file, whose name gives its format, to target.
func unpack(fetched, name, member, target string) error {
	switch {
	case member == "":
		if err := os.Chmod(fetched, 0o755); err != nil {
			return err
		}
		return os.Rename(fetched, target)
	case strings.HasSuffix(name, ".zip"):
		return unzip(fetched, member, target)
	default:
		return untar(fetched, member, target)
	}
}

func untar(fetched, member, target string) error {
	file, err := os.Open(fetched)
	if err != nil {
		return err
	}
	defer func() { _ = file.Close() }()
	plain, err := gzip.NewReader(file)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(fetched), err)
	}
	archive := tar.NewReader(plain)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return fmt.Errorf("the archive holds no %s", member)
		}
		if err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(fetched), err)
		}
		if header.Typeflag == tar.TypeReg && path.Clean(header.Name) == member {
			return writeProgram(target, archive)
		}
	}
}

func unzip(fetched, member, target string) error {
	archive, err := zip.OpenReader(fetched)
	if err != nil {
		return fmt.Errorf("unpack %s: %w", filepath.Base(fetched), err)
	}
	defer func() { _ = archive.Close() }()
	for _, entry := range archive.File {
		if path.Clean(entry.Name) != member {
			continue
		}
		content, err := entry.Open()
		if err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(fetched), err)
		}
		defer func() { _ = content.Close() }()
		return writeProgram(target, content)
	}
	return fmt.Errorf("the archive holds no %s", member)
}

func writeProgram(target string, content io.Reader) error {
	file, err := os.OpenFile(target, os.O_CREATE|os.O_TRUNC|os.O_WRONLY, 0o755)
	if err != nil {
		return err
	}
	n, err := io.Copy(file, io.LimitReader(content, largestFile))
	if err == nil && n == largestFile {
		err = fmt.Errorf("a program of more than %d MiB", largestFile>>20)
	}
	if err := errors.Join(err, file.Close(), os.Chmod(target, 0o755)); err != nil {
		return fmt.Errorf("unpack into %s: %w", target, err)
	}
	return nil
}

// fileSum returns the SHA-256 of all that a reader gives, which it also writes to w.
func fileSum(w io.Writer, r io.Reader) (sum string, n int64, err error) {
	hash := sha256.New()
	n, err = io.Copy(io.MultiWriter(w, hash), r)
	return hex.EncodeToString(hash.Sum(nil)), n, err
}

// hostOf returns the host of a URL, unchanged.
func hostOf(address string) string {
	u, err := url.Parse(address)
	if err != nil {
		return address
	}
	return u.Host
}
