// Package toolchain provides the commands that tests run. It takes, in this order: what is on the PATH where the version fits; what is in
// its cache, a directory keyed by version; the file that the tool's project publishes, checked by the checksum beside it or by a lock; and
// only then it builds the tool from its Go module. A build that was interrupted continues where it stopped (Go's own build cache), a
// half-written command is never seen (it is renamed into
// place when whole), and two processes that want the same tool wait for each other (a lock per tool).
//
// Each tool's dependencies are a module of their own under modules/. What modules share has one version in all of them and in the project,
// and is compiled with the same flags, so that Go compiles it once; versions_test.go has the exceptions.
package toolchain

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"gpufabric.io/build/filelock"
	"gpufabric.io/build/repository"
)

// CacheVariable names the environment variable that moves the cache.
const CacheVariable = "GPUFABRIC_CACHE"

// A build that should stop gets this long before it is killed.
const stopPatience = 10 * time.Second

// Toolchain finds and builds tools.
type Toolchain struct {
	Cache   string    // where tools are stored: CACHE/NAME/VERSION-OS-ARCH/NAME
	Modules string    // the directory with a module per group of tools
	Log     io.Writer // progress, a line a step; silent when nothing is missing

	// sites are where published files come from; nil: from nowhere.
	sites *sites
	// build makes one tool at the given path; tests replace it.
	build func(ctx context.Context, t Tool, path string) error
}

// CacheRoot is the directory for everything that is costly to make and safe to delete: $GPUFABRIC_CACHE, else gpufabric under the user's
// cache directory.
func CacheRoot() (string, error) {
	if dir := os.Getenv(CacheVariable); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("no cache directory: %w; set %s to one", err, CacheVariable)
	}
	return filepath.Join(dir, "gpufabric"), nil
}

// New returns the toolchain of this checkout; progress goes to log.
func New(log io.Writer) (*Toolchain, error) {
	cache, err := CacheRoot()
	if err != nil {
		return nil, err
	}
	root, err := repository.Root()
	if err != nil {
		return nil, err
	}
	t := &Toolchain{Cache: filepath.Join(cache, "toolchain"), Modules: filepath.Join(root, "build/toolchain/modules"), Log: log}
	t.build = t.goBuild
	t.sites, err = sitesFromEnvironment(t.lockFile())
	return t, err
}

// Ensure returns the path of each named tool, having fetched or built what was missing; progress goes to standard error. No names means
// all but those that one target alone runs.
func Ensure(ctx context.Context, names ...string) (map[string]string, error) {
	t, err := New(os.Stderr)
	if err != nil {
		return nil, err
	}
	return t.Ensure(ctx, names...)
}

// Ensure returns the path of each named tool, having fetched or built what was missing. No names means all but those that one target alone
// runs.
func (c *Toolchain) Ensure(ctx context.Context, names ...string) (map[string]string, error) {
	if len(names) == 0 {
		names = standing()
	}
	var missing []Tool
	paths := map[string]string{}
	for _, name := range names {
		tool, err := Lookup(name)
		if err != nil {
			return nil, err
		}
		path, err := c.find(ctx, tool)
		if err != nil {
			return nil, err
		}
		if path == "" {
			missing = append(missing, tool)
			continue
		}
		paths[name] = path
	}
	for i, tool := range missing {
		line := progress{w: c.Log, prefix: fmt.Sprintf("[%d/%d] %s %s", i+1, len(missing), tool.Name, tool.Version)}
		path, err := c.make(ctx, tool, line)
		if err != nil {
			return nil, err
		}
		paths[tool.Name] = path
	}
	return paths, nil
}

// EnsureSince is Ensure for one tool whose caller also runs with an older command of the PATH: of version minimum, such as 1.8.0, or later.
func EnsureSince(ctx context.Context, name, minimum string) (string, error) {
	t, err := New(os.Stderr)
	if err != nil {
		return "", err
	}
	return t.ensureSince(ctx, name, minimum)
}

func (c *Toolchain) ensureSince(ctx context.Context, name, minimum string) (string, error) {
	tool, err := Lookup(name)
	if err != nil {
		return "", err
	}
	if tool.fits.min, err = findVersion(minimum); err != nil {
		return "", fmt.Errorf("the oldest %s that fits: %w", name, err)
	}
	tool.static = false // the caller runs it here, and puts it into no image
	if path, _ := tool.fromPath(ctx); path != "" {
		return path, nil
	}
	paths, err := c.Ensure(ctx, name)
	return paths[name], err
}

// find returns where the tool already is, or "".
func (c *Toolchain) find(ctx context.Context, t Tool) (string, error) {
	if path, _ := t.fromPath(ctx); path != "" {
		return path, nil
	}
	path := c.place(t)
	if whole, err := c.whole(path); err != nil || !whole {
		return "", err
	}
	return path, nil
}

// whole reports whether a program lies at path. The rest of one on a damaged or full disk is reported and made again.
func (c *Toolchain) whole(path string) (bool, error) {
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, fmt.Errorf("look into the toolchain's cache: %w; remove %s, or set %s to another directory", err, c.Cache, CacheVariable)
	case !info.Mode().IsRegular() || info.Size() == 0 || info.Mode()&0o100 == 0:
		fmt.Fprintf(c.Log, "%s is damaged (%s, %d bytes): made again\n", path, info.Mode(), info.Size())
		return false, os.RemoveAll(path)
	}
	return true, nil
}

// place is the path of a fetched or built tool.
func (c *Toolchain) place(t Tool) string {
	return filepath.Join(c.Cache, t.Name, fmt.Sprintf("%s-%s-%s", t.Version, runtime.GOOS, runtime.GOARCH), t.binary)
}

// make fetches or builds the tool under its lock, unless another process just did.
func (c *Toolchain) make(ctx context.Context, t Tool, line progress) (string, error) {
	path := c.place(t)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", err
	}
	unlock, err := filelock.Lock(ctx, filepath.Join(filepath.Dir(path), ".lock"), func() { line.say("another process makes it; waiting") })
	if err != nil {
		return "", err
	}
	defer unlock()
	whole, err := c.whole(path)
	if err != nil {
		return "", err
	}
	if whole {
		line.say("made by another process")
		return path, nil
	}
	if err := room(c.Cache); err != nil {
		return "", fmt.Errorf("make %s %s: %w", t.Name, t.Version, err)
	}

	unfinished := path + ".unfinished"
	if c.sites != nil && t.published() {
		err := c.sites.fetch(ctx, t, unfinished, line)
		if err == nil {
			return path, os.Rename(unfinished, path)
		}
		if ctx.Err() != nil {
			return "", err
		}
		line.say(fmt.Sprintf("not fetched, so it is built (%s=off does not try): %v", ReleasesVariable, err))
	}
	line.start(t.building())
	started := time.Now()
	if err := c.build(ctx, t, unfinished); err != nil {
		line.end("failed")
		return "", err
	}
	if err := os.Rename(unfinished, path); err != nil {
		line.end("failed")
		return "", err
	}
	line.end(fmt.Sprintf("%.0f s", time.Since(started).Seconds()))
	return path, nil
}

// leastRoom is the space that must be free on the disk before a tool is made: Kubernetes' largest program, its link and its packages in
// Go's cache.
const leastRoom = 2 << 30

// room reports a disk that is too full to make a tool on.
func room(dir string) error {
	var disk syscall.Statfs_t
	if err := syscall.Statfs(dir, &disk); err != nil {
		return fmt.Errorf("read how much of the disk of %s is free: %w", dir, err)
	}
	if free := disk.Bavail * uint64(disk.Bsize); free < leastRoom {
		return fmt.Errorf("the disk of %s has %d MiB free, and %d are needed: make room, or set %s (and GOCACHE) to another disk",
			dir, free>>20, leastRoom>>20, CacheVariable)
	}
	return nil
}

// building reports what is being built and about how long it takes.
func (t Tool) building() string {
	if t.minutes == 0 {
		return "building (a minute on two idle cores)"
	}
	return fmt.Sprintf("building (up to %d min on two idle cores)", max(t.minutes, 1))
}

// goBuild builds the tool from its module. Each is compiled with cgo, as the project's own programs are: without it package net is another
// one, and every package that imports it is compiled twice. One that goes into an image without libraries is linked statically; its module
// sets netdns=go, since glibc's resolver needs libraries at run time.
func (c *Toolchain) goBuild(ctx context.Context, t Tool, path string) error {
	flags := "-s -w"
	if t.static {
		flags += " -linkmode=external -extldflags '-static -Wl,--no-warnings'"
	}
	for _, setting := range t.settings {
		flags += " -X " + setting
	}
	args := []string{"build", "-trimpath", "-ldflags", flags, "-o", path}
	if t.tags != "" {
		args = append(args, "-tags", t.tags)
	}
	if _, err := c.fetch(ctx, t, "-deps", t.main); err != nil {
		return err
	}
	if _, err := c.run(ctx, t, append(args, t.main)...); err != nil {
		return fmt.Errorf("build %s %s: %w", t.Name, t.Version, err)
	}
	return nil
}

// tries is how often modules are asked for: a registry, or the way to it, drops one connection of many now and then.
const tries = 3

// fetch lists packages of the module that a tool is built from, which fills Go's module cache with them.
func (c *Toolchain) fetch(ctx context.Context, t Tool, args ...string) (listed string, err error) {
	for try := range tries {
		if listed, err = c.run(ctx, t, append([]string{"list"}, args...)...); err == nil || ctx.Err() != nil {
			break
		}
		fmt.Fprintf(c.Log, "modules of %s %s, try %d of %d: %v\n", t.Name, t.Version, try+1, tries, err)
	}
	if err != nil {
		return "", fmt.Errorf("fetch the modules of %s %s: %w", t.Name, t.Version, err)
	}
	return listed, nil
}

// run runs Go in the module that a tool is built from, and returns what it prints.
func (c *Toolchain) run(ctx context.Context, t Tool, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(c.Modules, t.module)
	cmd.Env = append(os.Environ(), "GOWORK=off", "GOFLAGS=-mod=readonly", "CGO_ENABLED=1", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = stopPatience
	var failed bytes.Buffer
	cmd.Stderr = &failed
	printed, err := cmd.Output()
	if err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = cause
		}
		return "", fmt.Errorf("go %s in %s: %w\n%s", strings.Join(args, " "), cmd.Dir, err, tail(failed.String(), 20))
	}
	return string(printed), nil
}

// ModuleDirectory is where the module that a tool is built from lies in Go's module cache, which is filled where it lacks it. A project's
// charts and CRDs are read there.
func ModuleDirectory(ctx context.Context, name string) (string, error) {
	t, err := Lookup(name)
	if err != nil {
		return "", err
	}
	c, err := New(os.Stderr)
	if err != nil {
		return "", err
	}
	directory, err := c.fetch(ctx, t, "-f", "{{.Module.Dir}}", t.source())
	return strings.TrimSpace(directory), err
}

// source is a package of the project that the tool is of.
func (t Tool) source() string {
	if t.project != "" {
		return t.project
	}
	return t.main
}

// tail returns the last n lines of text.
func tail(text string, n int) string {
	lines := strings.Split(strings.TrimRight(text, "\n"), "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// progress writes one tool's lines.
type progress struct {
	w      io.Writer
	prefix string
}

func (p progress) say(what string)   { fmt.Fprintf(p.w, "%s: %s\n", p.prefix, what) }
func (p progress) start(what string) { fmt.Fprintf(p.w, "%s: %s ... ", p.prefix, what) }
func (p progress) end(how string)    { fmt.Fprintln(p.w, how) }
