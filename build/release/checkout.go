// Package release makes a release of this repository: images, charts, the Terraform provider, archives, their records and signatures, all
// below one directory. The same commit, version, compilers and keys give the same bytes.
package release

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/mod/semver"
)

// Source is where the project's code is, as labels and records name it.
const Source = "https://github.com/gpufabric/gpufabric"

// Commit is what a release is made of.
type Commit struct {
	Hash string    // 40 hexadecimal digits
	Time time.Time // of the commit, in UTC: every time stamp in a release
}

// CheckVersion refuses what is no version of a release: semantic versioning without v and without build metadata, because tags of images
// and charts have no plus sign.
func CheckVersion(version string) error {
	v := "v" + version
	if !semver.IsValid(v) || semver.Canonical(v) != v || semver.Build(v) != "" || len(version) > 64 {
		return fmt.Errorf("VERSION=%q: a release needs a semantic version without v and without +metadata, such as 0.1.0 or 0.1.0-rc.1", version)
	}
	return nil
}

// Head returns the commit of the checkout at root. It fails where the checkout has changes that are in no commit, and where the version's
// tag names another commit.
func Head(ctx context.Context, root, version string) (Commit, error) {
	changed, err := git(ctx, root, "status", "--porcelain")
	if err != nil {
		return Commit{}, err
	}
	if changed != "" {
		lines := strings.Split(changed, "\n")
		if more := len(lines) - 10; more > 0 {
			lines = append(lines[:10], fmt.Sprintf("and %d more", more))
		}
		return Commit{}, fmt.Errorf("%s has changes that are in no commit; a release is made of a commit alone: commit or remove\n%s",
			root, strings.Join(lines, "\n"))
	}
	hash, err := git(ctx, root, "rev-parse", "HEAD")
	if err != nil {
		return Commit{}, err
	}
	tagged, err := git(ctx, root, "for-each-ref",
		"--format=%(if)%(*objectname)%(then)%(*objectname)%(else)%(objectname)%(end)", "refs/tags/v"+version)
	if err != nil {
		return Commit{}, err
	}
	if tagged != "" && tagged != hash {
		return Commit{}, fmt.Errorf("tag v%s exists and names commit %s, and HEAD is %s: choose the next version, or check v%s out",
			version, tagged, hash, version)
	}
	seconds, err := git(ctx, root, "show", "--no-patch", "--format=%ct", "HEAD")
	if err != nil {
		return Commit{}, err
	}
	unix, err := strconv.ParseInt(seconds, 10, 64)
	if err != nil {
		return Commit{}, fmt.Errorf("read the time of commit %s: %w", hash, err)
	}
	return Commit{Hash: hash, Time: time.Unix(unix, 0).UTC()}, nil
}

func git(ctx context.Context, root string, arguments ...string) (string, error) {
	command := exec.CommandContext(ctx, "git", append([]string{"-C", root}, arguments...)...)
	var said bytes.Buffer
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("git %s in %s: %w: %s", strings.Join(arguments, " "), root, err, strings.TrimSpace(said.String()))
	}
	return strings.TrimRight(string(out), "\n"), nil
}

// Export writes the commit's files to dir, which gets nothing that is not in the commit.
func Export(ctx context.Context, root string, commit Commit, dir string) error {
	command := exec.CommandContext(ctx, "git", "-C", root, "archive", "--format=tar", commit.Hash)
	var said bytes.Buffer
	command.Stderr = &said
	stream, err := command.StdoutPipe()
	if err != nil {
		return err
	}
	if err := command.Start(); err != nil {
		return fmt.Errorf("git archive: %w", err)
	}
	extracted := extract(tar.NewReader(stream), dir)
	if extracted != nil {
		_, _ = io.Copy(io.Discard, stream) // so that git ends
	}
	if err := command.Wait(); err != nil {
		return fmt.Errorf("git archive %s in %s: %w: %s", commit.Hash, root, err, strings.TrimSpace(said.String()))
	}
	return extracted
}

// extract writes an archive's directories, files and links below dir.
func extract(archive *tar.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read an archive of the commit: %w", err)
		}
		name := filepath.Clean(header.Name)
		switch header.Typeflag {
		case tar.TypeDir:
			err = root.MkdirAll(name, 0o755)
		case tar.TypeSymlink:
			err = root.Symlink(header.Linkname, name)
		case tar.TypeReg:
			err = extractFile(root, name, header.FileInfo().Mode().Perm(), archive)
		}
		if err != nil {
			return fmt.Errorf("write %s below %s: %w", header.Name, dir, err)
		}
	}
}

func extractFile(root *os.Root, name string, mode os.FileMode, content io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	file, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode)
	if err != nil {
		return err
	}
	_, err = io.Copy(file, content)
	return errors.Join(err, file.Close())
}

var chartVersion = regexp.MustCompile(`(?m)^(version|appVersion): .*$`)

// SetVersion gives the charts of an exported commit their version, which the images' tags follow.
func SetVersion(dir, version string) error {
	charts, err := filepath.Glob(filepath.Join(dir, "charts/*/Chart.yaml"))
	if err != nil {
		return err
	}
	for _, path := range charts {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if found := len(chartVersion.FindAll(text, -1)); found != 2 {
			return fmt.Errorf("%s has %d lines version and appVersion, want one of each", path, found)
		}
		if err := os.WriteFile(path, chartVersion.ReplaceAll(text, []byte("${1}: "+version)), 0o644); err != nil {
			return err
		}
	}
	return nil
}
