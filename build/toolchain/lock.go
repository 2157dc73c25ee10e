package toolchain

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// LockName is the file beside the catalogue with the checksums of every published file: "<sha256>  <URL>" per line. Where it
// exists, only files that it names are fetched, and the checksums on the sites are ignored.
const LockName = "releases.lock"

// lock holds SHA-256 checksums in hexadecimal by URL.
type lock map[string]string

// The architectures that a lock is for.
var architectures = []string{"amd64", "arm64"}

// readLock returns nil where there is no file.
func readLock(file string) (lock, error) {
	content, err := os.Open(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = content.Close() }()
	locked := lock{}
	lines := bufio.NewScanner(content)
	for n := 1; lines.Scan(); n++ {
		text := strings.TrimSpace(lines.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		fields := strings.Fields(text)
		if len(fields) != 2 || !sha256Pattern.MatchString(fields[0]) {
			return nil, fmt.Errorf("%s line %d is %q: a line is a SHA-256 and a URL; `make toolchain-lock` writes the file", file, n, text)
		}
		locked[fields[1]] = fields[0]
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", file, err)
	}
	return locked, nil
}

// WriteLock reads the checksum of every published file from the sites, for both architectures, and writes the lock of this
// checkout. further are lines to add, checksums by name. It writes all or nothing, and returns the path.
func WriteLock(ctx context.Context, log io.Writer, further map[string]string) (string, error) {
	t, err := New(log)
	if err != nil {
		return "", err
	}
	file := t.lockFile()
	s, err := newSites(os.Getenv(ReleasesVariable), nil)
	if err != nil {
		return "", err
	}
	if s == nil {
		return "", fmt.Errorf("%s is off: the checksums come from the sites", ReleasesVariable)
	}
	locked := lock{}
	maps.Copy(locked, further)
	if err := s.addChecksums(ctx, log, locked); err != nil {
		return "", err
	}
	return file, locked.write(file)
}

// addChecksums adds the checksums that the sites publish beside each tool's file.
func (s *sites) addChecksums(ctx context.Context, log io.Writer, locked lock) error {
	var errs []error
	for _, name := range Names() {
		tool := catalogue()[name]
		if !tool.published() {
			continue
		}
		for _, arch := range architectures {
			sum, err := s.publishedChecksum(ctx, tool, arch)
			if err != nil {
				errs = append(errs, fmt.Errorf("%s for %s: %w", name, arch, err))
				continue
			}
			locked[tool.fileURL(arch)] = sum
			fmt.Fprintf(log, "%s %s for %s: %s\n", name, tool.Version, arch, sum)
		}
	}
	return errors.Join(errs...)
}

func (l lock) write(file string) error {
	var text strings.Builder
	text.WriteString("# SHA-256 of the published files of tools; written by `make toolchain-lock`.\n")
	for _, address := range slices.Sorted(maps.Keys(l)) {
		fmt.Fprintf(&text, "%s  %s\n", l[address], address)
	}
	unfinished := file + ".unfinished"
	if err := os.WriteFile(unfinished, []byte(text.String()), 0o644); err != nil {
		return err
	}
	return os.Rename(unfinished, file)
}

// LockedImage returns the digest that the lock of this checkout has for a container image, "sha256:..."; empty where it has none.
func LockedImage(image string) (string, error) {
	t, err := New(io.Discard)
	if err != nil {
		return "", err
	}
	locked, err := readLock(t.lockFile())
	if err != nil || locked[image] == "" {
		return "", err
	}
	return "sha256:" + locked[image], nil
}

func (c *Toolchain) lockFile() string { return filepath.Join(filepath.Dir(c.Modules), LockName) }
