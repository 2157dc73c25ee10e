package toolchain

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
)

// offPath hides every tool on the PATH, so that the cache and the build decide.
func offPath(t *testing.T) {
	t.Helper()
	t.Setenv("PATH", t.TempDir())
}

func newToolchain(t *testing.T, build func(ctx context.Context, tool Tool, path string) error) (*Toolchain, *bytes.Buffer) {
	t.Helper()
	log := &bytes.Buffer{}
	return &Toolchain{Cache: t.TempDir(), Log: log, build: build}, log
}

func writeTool(_ context.Context, tool Tool, path string) error {
	return os.WriteFile(path, []byte(tool.Name), 0o755)
}

func TestEnsureBuildsOnceAndSaysWhatItBuilds(t *testing.T) {
	offPath(t)
	var builds atomic.Int32
	c, log := newToolchain(t, func(ctx context.Context, tool Tool, path string) error {
		builds.Add(1)
		return writeTool(ctx, tool, path)
	})
	for range 2 {
		paths, err := c.Ensure(t.Context(), "kind", "etcd")
		if err != nil {
			t.Fatal(err)
		}
		for name, path := range paths {
			if content, err := os.ReadFile(path); err != nil || string(content) != name {
				t.Errorf("%s at %s: content %q, error %v", name, path, content, err)
			}
		}
	}
	if got := builds.Load(); got != 2 {
		t.Errorf("%d builds for two tools asked for twice, want 2", got)
	}
	for _, want := range []string{"[1/2] kind " + Kind + ": building (a minute on two idle cores) ... ",
		"[2/2] etcd " + Etcd + ": building (up to 1 min on two idle cores) ... "} {
		if !strings.Contains(log.String(), want) {
			t.Errorf("progress lacks %q:\n%s", want, log)
		}
	}
}

func TestBuildIsRetriedAfterAFailure(t *testing.T) {
	offPath(t)
	broken := errors.New("interrupted")
	fail := true
	c, _ := newToolchain(t, func(ctx context.Context, tool Tool, path string) error {
		if fail {
			if err := os.WriteFile(path, []byte("half"), 0o755); err != nil {
				return err
			}
			return broken
		}
		return writeTool(ctx, tool, path)
	})
	if _, err := c.Ensure(t.Context(), "kind"); !errors.Is(err, broken) {
		t.Fatalf("error %v, want %v", err, broken)
	}
	tool, err := Lookup("kind")
	if err != nil {
		t.Fatal(err)
	}
	if path, err := c.find(t.Context(), tool); path != "" || err != nil {
		t.Fatalf("a half-written tool is found at %q (error %v)", path, err)
	}
	fail = false
	paths, err := c.Ensure(t.Context(), "kind")
	if err != nil {
		t.Fatal(err)
	}
	if content, _ := os.ReadFile(paths["kind"]); string(content) != "kind" {
		t.Errorf("content %q after the second try", content)
	}
}

func TestBuildRunsOnceForTwoCallers(t *testing.T) {
	offPath(t)
	cache := t.TempDir()
	var running, builds atomic.Int32
	begun := make(chan struct{})
	finish := make(chan struct{})
	build := func(ctx context.Context, tool Tool, path string) error {
		if running.Add(1) != 1 {
			t.Error("two builds of one tool at once")
		}
		defer running.Add(-1)
		if builds.Add(1) == 1 {
			close(begun)
			<-finish
		}
		return writeTool(ctx, tool, path)
	}
	waits := make(chan struct{})
	logs := [2]waitWriter{{saw: make(chan struct{}, 1)}, {saw: waits}}
	var wait sync.WaitGroup
	for i := range 2 {
		if i == 1 {
			<-begun
		}
		wait.Add(1)
		go func() {
			defer wait.Done()
			c := &Toolchain{Cache: cache, Log: logs[i], build: build}
			if _, err := c.Ensure(t.Context(), "kind"); err != nil {
				t.Error(err)
			}
		}()
	}
	<-waits
	close(finish)
	wait.Wait()
	if got := builds.Load(); got != 1 {
		t.Errorf("%d builds, want 1", got)
	}
}

// waitWriter closes a channel when the progress reports a wait.
type waitWriter struct{ saw chan struct{} }

func (w waitWriter) Write(p []byte) (int, error) {
	if bytes.Contains(p, []byte("waiting")) {
		close(w.saw)
	}
	return len(p), nil
}

func TestEnsureListsNamesForAnUnknownOne(t *testing.T) {
	_, err := Lookup("kubeclt")
	if err == nil || !strings.Contains(err.Error(), "kubectl") {
		t.Errorf("error %v, want one that lists kubectl", err)
	}
}

func TestPathToolIsTakenOnlyWhereItsVersionFits(t *testing.T) {
	tests := map[string]struct {
		tool, command, says string
		taken               bool
	}{
		"terraform of the oldest version that will do": {"terraform", "terraform", "Terraform v1.14.0\non linux_amd64", true},
		"terraform that is too old":                    {"terraform", "terraform", "Terraform v1.13.5", false},
		"tofu does not stand in for terraform":         {"terraform", "tofu", "OpenTofu v1.12.6", false},
		"tofu":                                         {"tofu", "tofu", "OpenTofu v1.12.6", true},
		"helm of the next major version":               {"helm", "helm", "v4.0.1+gabc", false},
		"a command that says no version":               {"helm", "helm", "hello", false},
		"a script where a static binary is needed":     {"kubectl", "kubectl", "Client Version: v1.36.3", false},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			script := "#!/bin/sh\nprintf '%s\\n' '" + test.says + "'\n"
			if err := os.WriteFile(filepath.Join(dir, test.command), []byte(script), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir)
			tool, err := Lookup(test.tool)
			if err != nil {
				t.Fatal(err)
			}
			path, why := tool.fromPath(t.Context())
			if (path != "") != test.taken {
				t.Errorf("path %q (%s), want taken = %v", path, why, test.taken)
			}
		})
	}
}

func TestEnsureMakesADamagedToolAgain(t *testing.T) {
	offPath(t)
	for name, damage := range map[string]func(path string) error{
		"truncated":      func(path string) error { return os.Truncate(path, 0) },
		"not executable": func(path string) error { return os.Chmod(path, 0o644) },
		"a directory":    func(path string) error { return errors.Join(os.Remove(path), os.Mkdir(path, 0o755)) },
	} {
		t.Run(name, func(t *testing.T) {
			c, log := newToolchain(t, writeTool)
			paths, err := c.Ensure(t.Context(), "kind")
			if err != nil {
				t.Fatal(err)
			}
			if err := damage(paths["kind"]); err != nil {
				t.Fatal(err)
			}
			if paths, err = c.Ensure(t.Context(), "kind"); err != nil {
				t.Fatal(err)
			}
			if content, err := os.ReadFile(paths["kind"]); err != nil || string(content) != "kind" {
				t.Errorf("content %q, error %v", content, err)
			}
			if !strings.Contains(log.String(), "is damaged") {
				t.Errorf("the damage is not reported:\n%s", log)
			}
		})
	}
}

func TestEnsureSinceTakesAnOlderCommandOfThePath(t *testing.T) {
	for said, taken := range map[string]bool{
		"Terraform v1.6.0": true, "Terraform v1.11.4": true, "Terraform v1.5.9": false, "Terraform v2.0.0": false,
	} {
		t.Run(said, func(t *testing.T) {
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "terraform"), []byte("#!/bin/sh\necho '"+said+"'\n"), 0o755); err != nil {
				t.Fatal(err)
			}
			t.Setenv("PATH", dir)
			c, _ := newToolchain(t, writeTool)
			path, err := c.ensureSince(t.Context(), "terraform", "1.6.0")
			if err != nil {
				t.Fatal(err)
			}
			if got := filepath.Dir(path) == dir; got != taken {
				t.Errorf("path %s: taken from the PATH is %v, want %v", path, got, taken)
			}
		})
	}
	if _, err := EnsureSince(t.Context(), "terraform", "newest"); err == nil || !strings.Contains(err.Error(), "newest") {
		t.Errorf("error %v, want one that names the version that is none", err)
	}
}

func TestModulesPinTheVersionsOfTheCatalogue(t *testing.T) {
	for _, name := range Names() {
		tool, err := Lookup(name)
		if err != nil {
			t.Fatal(err)
		}
		content, err := os.ReadFile(filepath.Join("modules", tool.module, "go.mod"))
		if err != nil {
			t.Fatal(err)
		}
		if !requires(string(content), tool.source(), tool.Version) {
			t.Errorf("modules/%s/go.mod does not require the module of %s at %s", tool.module, tool.source(), tool.Version)
		}
		imports, err := os.ReadFile(filepath.Join("modules", tool.module, "tools.go"))
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(imports), `"`+tool.source()+`"`) {
			t.Errorf("modules/%s/tools.go does not import %s", tool.module, tool.source())
		}
	}
}

// requires reports whether a go.mod requires a module that holds the package, at the version.
func requires(mod, pkg, version string) bool {
	for line := range strings.Lines(mod) {
		fields := strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "require "))
		if len(fields) >= 2 && fields[1] == version && (pkg == fields[0] || strings.HasPrefix(pkg, fields[0]+"/")) {
			return true
		}
	}
	return false
}
