package toolchain

import (
	"context"
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"time"
)

// A command that does not print its version within this time is skipped.
const versionPatience = 10 * time.Second

// fromPath returns the first command on the PATH that fits the tool, or "" and why none did.
func (t Tool) fromPath(ctx context.Context) (path, why string) {
	why = "not on the PATH"
	for _, name := range t.onPath {
		found, err := exec.LookPath(name)
		if err != nil {
			continue
		}
		if reason := t.refuse(ctx, found); reason != "" {
			why = found + " " + reason
			continue
		}
		return found, ""
	}
	return "", why
}

// refuse reports why the command at path is not suitable, or "" when it is.
func (t Tool) refuse(ctx context.Context, path string) string {
	ctx, cancel := context.WithTimeout(ctx, versionPatience)
	defer cancel()
	command := exec.CommandContext(ctx, path, t.askVersion...)
	command.Env = append(os.Environ(), "CHECKPOINT_DISABLE=1") // terraform asks its maker for newer versions otherwise
	said, err := command.CombinedOutput()
	if err != nil {
		return "does not report its version: " + err.Error()
	}
	v, err := findVersion(string(said))
	if err != nil {
		return "does not report its version"
	}
	if !t.fits.holds(v) {
		return "is " + v.String()
	}
	if t.static && !linkedStatically(path) {
		return "needs shared libraries"
	}
	return ""
}

func linkedStatically(path string) bool {
	file, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = file.Close() }()
	binary, err := elf.NewFile(file)
	if err != nil {
		return false
	}
	libraries, err := binary.ImportedLibraries()
	return len(libraries) == 0 && (err == nil || errors.Is(err, elf.ErrNoSymbols))
}
