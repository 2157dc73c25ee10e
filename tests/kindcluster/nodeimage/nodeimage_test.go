package nodeimage

import (
	"archive/tar"
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/build/images"
)

func TestSetupScriptIsValidBash(t *testing.T) {
	check := exec.CommandContext(t.Context(), "bash", "-n")
	check.Stdin = strings.NewReader(setup)
	if said, err := check.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, said)
	}
}

func TestFilesAreStreamedWithTheirModes(t *testing.T) {
	source := filepath.Join(t.TempDir(), "kubelet")
	if err := os.WriteFile(source, []byte("binary"), 0o600); err != nil {
		t.Fatal(err)
	}
	var stream bytes.Buffer
	if err := writeEntries(&stream, []images.File{
		{Path: "usr/bin/kubelet", Mode: 0o755, From: source},
		{Path: "kind/version", Mode: 0o644, Content: []byte("v1\n")},
	}); err != nil {
		t.Fatal(err)
	}
	type file struct {
		Mode    int64
		Content string
	}
	got := map[string]file{}
	archive := tar.NewReader(&stream)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		got[header.Name] = file{header.Mode, string(content)}
	}
	want := map[string]file{"usr/bin/kubelet": {0o755, "binary"}, "kind/version": {0o644, "v1\n"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestKindsModuleHasTheBaseFilesThatANodeNeeds(t *testing.T) {
	dir, err := kindBaseFiles(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{"usr/local/bin/entrypoint", "kind/bin/mount-product-files.sh", "etc/containerd/config.toml",
		"etc/systemd/system/kubelet.service"} {
		if _, err := os.Stat(filepath.Join(dir, path)); err != nil {
			t.Error(err)
		}
	}
	config, err := os.ReadFile(filepath.Join(dir, "etc/containerd/config.toml"))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(config), `sandbox_image = "`+sandboxImage+`"`) {
		t.Errorf("kind's containerd starts pods from another image than %s", sandboxImage)
	}
}
