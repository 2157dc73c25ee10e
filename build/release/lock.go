package release

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"gpufabric.io/build/images"
)

// lockName is the file that pins the C library's files in the images.
const lockName = "build/release/libraries.lock"

// Lock pins files of Debian's packages that go into images, because a program that opens libnvidia-ml.so.1 cannot be linked statically.
// They are read where the package has put them on the building machine, and compared with these sums.
type Lock struct {
	Packages []library `json:"packages"`
}

// library is a Debian package with the C library of an architecture.
type library struct {
	Package      string            `json:"package"` // as the building machine has it, such as libc6-arm64-cross
	Version      string            `json:"version"`
	Source       string            `json:"source"`       // the source package that vulnerabilities are reported for
	Upstream     string            `json:"upstream"`     // version of the source package
	Architecture string            `json:"architecture"` // amd64 or arm64
	Files        map[string]string `json:"files"`        // name: SHA-256
	Licences     map[string]string `json:"licences"`     // absolute path on the building machine: SHA-256
}

// ReadLock reads the lock of an exported commit.
func ReadLock(root string) (Lock, error) {
	path := filepath.Join(root, lockName)
	text, err := os.ReadFile(path)
	if err != nil {
		return Lock{}, err
	}
	var lock Lock
	if err := yaml.UnmarshalStrict(text, &lock); err != nil {
		return Lock{}, fmt.Errorf("read %s: %w", path, err)
	}
	return lock, nil
}

// find returns the package that has a file for an architecture, or nil.
func (l Lock) find(name, architecture string) *library {
	for i := range l.Packages {
		if l.Packages[i].Architecture == architecture && l.Packages[i].Files[name] != "" {
			return &l.Packages[i]
		}
	}
	return nil
}

// texts returns the package's licences, compared with the lock.
func (l *library) texts() ([]byte, error) {
	var all bytes.Buffer
	for _, path := range sortedKeys(l.Licences) {
		text, err := os.ReadFile(path)
		if err != nil {
			return nil, fmt.Errorf("read a licence of %s: %w", l.Package, err)
		}
		if sum := hexSum(text); sum != l.Licences[path] {
			return nil, fmt.Errorf("%s has SHA-256 %s, and %s names %s: install %s %s, or write the lock again",
				path, sum, lockName, l.Licences[path], l.Package, l.Version)
		}
		fmt.Fprintf(&all, "%s\n\n%s\n", filepath.Base(path), text)
	}
	return all.Bytes(), nil
}

// record is the package's entry of Debian's status file, by which scanners recognise the C library.
func (l *library) record() []byte {
	return fmt.Appendf(nil, "Package: libc6\nStatus: install ok installed\nPriority: optional\nSection: libs\nMaintainer: gpufabric\n"+
		"Architecture: %s\nSource: %s (%s)\nVersion: %s\nDescription: GNU C Library, from Debian's package %s %s\n",
		l.Architecture, l.Source, l.Upstream, l.Upstream, l.Package, l.Version)
}

func hexSum(content []byte) string {
	sum := sha256.Sum256(content)
	return hex.EncodeToString(sum[:])
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// WriteLock writes the lock of what a program takes of this machine's packages, for both architectures.
func WriteLock(ctx context.Context, root string) error {
	dir, err := os.MkdirTemp("", "lock")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	source, program := filepath.Join(dir, "p.c"), filepath.Join(dir, "p")
	if err := os.WriteFile(source, []byte("#include <stdio.h>\nint main(void) { return puts(\"x\") < 0; }\n"), 0o600); err != nil {
		return err
	}
	compilers := map[string]string{"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}
	var lock Lock
	for _, architecture := range sortedKeys(compilers) {
		if out, err := exec.CommandContext(ctx, compilers[architecture], "-o", program, source).CombinedOutput(); err != nil {
			return fmt.Errorf("%s: %w: %s", compilers[architecture], err, out)
		}
		files, err := images.Libraries(program, architecture)
		if err != nil {
			return err
		}
		found := map[string]*library{}
		for _, file := range files {
			content, err := os.ReadFile(file.From)
			if err != nil {
				return err
			}
			name, err := owner(ctx, file.From)
			if err != nil {
				return err
			}
			if found[name] == nil {
				if found[name], err = describe(ctx, name, architecture); err != nil {
					return err
				}
			}
			found[name].Files[filepath.Base(file.Path)] = hexSum(content)
		}
		for _, name := range sortedKeys(found) {
			lock.Packages = append(lock.Packages, *found[name])
		}
	}
	text, err := yaml.Marshal(lock)
	if err != nil {
		return err
	}
	head := "# Files of Debian's packages that go into the images. `make release-lock` writes it; a release refuses other files.\n"
	return os.WriteFile(filepath.Join(root, lockName), append([]byte(head), text...), 0o644)
}

// owner is the installed package that has a file, with its architecture.
func owner(ctx context.Context, path string) (string, error) {
	candidates := []string{path, strings.TrimPrefix(path, "/usr")} // dpkg lists some files below /lib, which is a link to /usr/lib
	for _, candidate := range candidates {
		said, err := exec.CommandContext(ctx, "dpkg-query", "--search", candidate).Output()
		if name, _, ok := strings.Cut(string(said), ": "); err == nil && ok {
			return name, nil
		}
	}
	return "", fmt.Errorf("no package of dpkg's has %s: the lock is of Debian's packages", path)
}

func describe(ctx context.Context, name, architecture string) (*library, error) {
	said, err := exec.CommandContext(ctx, "dpkg-query", "--show", "--showformat",
		"${Package}\n${Version}\n${source:Package}\n${source:Version}", name).Output()
	if err != nil {
		return nil, fmt.Errorf("dpkg-query --show %s: %w", name, err)
	}
	fields := strings.Split(string(said), "\n")
	if len(fields) != 4 {
		return nil, fmt.Errorf("dpkg-query --show %s prints %q, want four lines", name, said)
	}
	one := &library{Package: fields[0], Version: fields[1], Source: fields[2], Upstream: fields[3], Architecture: architecture,
		Files: map[string]string{}, Licences: map[string]string{}}
	if upstream, _, ok := strings.Cut(one.Version, "cross"); ok {
		one.Source, one.Upstream = "glibc", upstream // Debian builds the cross compiler's C library from glibc's source of this version
	}
	var errs []error
	for _, path := range []string{"/usr/share/doc/" + one.Package + "/copyright", "/usr/share/common-licenses/LGPL-2.1"} {
		text, err := os.ReadFile(path)
		errs = append(errs, err)
		one.Licences[path] = hexSum(text)
	}
	return one, errors.Join(errs...)
}
