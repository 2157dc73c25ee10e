package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
)

// goFlags and cFlags are what everything of a release is compiled with, whatever the caller's environment has.
const (
	goFlags = "-buildvcs=false -trimpath"
	cFlags  = "-O2 -g -Wno-deprecated-declarations"
)

// kept are the variables of the environment that reach the compilers: where programs, caches and modules are.
var kept = []string{"PATH", "HOME", "TMPDIR", "GOPATH", "GOCACHE", "GOMODCACHE", "GOPROXY", "GONOPROXY",
	"GOPRIVATE", "GOSUMDB", "GONOSUMDB", "GOTOOLCHAIN",
	"HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE", "SSL_CERT_DIR"}

func environment(further ...string) []string {
	var environment []string
	for _, name := range kept {
		if value, ok := os.LookupEnv(name); ok {
			environment = append(environment, name+"="+value)
		}
	}
	return append(append(environment, "LC_ALL=C", "TZ=UTC", "GOFLAGS="+goFlags, "CGO_CFLAGS="+cFlags, "GOENV=off"), further...)
}

// Compile builds in an exported commit all that a release packs: the images' programs and libraries by the Makefile, and the provider for
// each platform, always without cgo. With cgo, as `make build` links it, Go would compile most of its packages a second time.
func Compile(ctx context.Context, dir, version string, platforms []Platform, said io.Writer) error {
	for _, target := range []string{"programs", "cross-programs"} {
		if err := run(ctx, dir, said, environment(), "make", "--no-print-directory", target, "VERSION="+version); err != nil {
			return err
		}
	}
	for _, p := range platforms {
		err := run(ctx, filepath.Join(dir, "provider"), said, environment("CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Architecture),
			"go", "build", "-ldflags", "-s -w -X main.version="+version, "-o", filepath.Join(dir, "bin/provider", p.String(), providerName), ".")
		if err != nil {
			return err
		}
	}
	return nil
}

func run(ctx context.Context, dir string, said io.Writer, environment []string, name string, arguments ...string) error {
	command := exec.CommandContext(ctx, name, arguments...)
	command.Dir, command.Env, command.Stdout, command.Stderr = dir, environment, said, said
	if err := command.Run(); err != nil {
		return fmt.Errorf("%s %s in %s: %w", name, strings.Join(arguments, " "), dir, err)
	}
	return nil
}

// Tools are the versions of the compilers, which decide about the bytes of a release.
func Tools(ctx context.Context) (map[string]string, error) {
	tools := map[string]string{"machine": runtime.GOOS + "/" + runtime.GOARCH}
	var errs []error
	for name, command := range map[string][]string{
		"go": {"go", "env", "GOVERSION"}, "gcc": {"gcc", "--version"},
		"gcc-arm64": {"aarch64-linux-gnu-gcc", "--version"}, "ld": {"ld", "--version"},
	} {
		out, err := exec.CommandContext(ctx, command[0], command[1:]...).Output()
		if err != nil {
			errs = append(errs, fmt.Errorf("a release needs %s (Debian: apt-get install gcc gcc-aarch64-linux-gnu libc6-dev-arm64-cross): %w",
				command[0], err))
		}
		line, _, _ := bytes.Cut(out, []byte("\n"))
		tools[name] = string(line)
	}
	return tools, errors.Join(errs...)
}

// FindTexts asks Go where modules and its own licence are.
func FindTexts(ctx context.Context, root string) (Texts, error) {
	out, err := exec.CommandContext(ctx, "go", "env", "GOMODCACHE", "GOROOT").Output()
	if err != nil {
		return Texts{}, fmt.Errorf("go env: %w", err)
	}
	lines := strings.Split(strings.TrimSpace(string(out)), "\n")
	if len(lines) != 2 {
		return Texts{}, fmt.Errorf("go env prints %q, want two lines", out)
	}
	return Texts{ModuleCache: lines[0], GoRoot: lines[1], Root: root}, nil
}
