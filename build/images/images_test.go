package images

import (
	"archive/tar"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
)

// contents lists an image's files: path to content, "-> target" for a link, "/" for a directory.
func contents(t *testing.T, image v1.Image) map[string]string {
	t.Helper()
	files := map[string]string{}
	stream := mutate.Extract(image)
	defer func() { _ = stream.Close() }()
	archive := tar.NewReader(stream)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		if err != nil {
			t.Fatal(err)
		}
		name := "/" + strings.TrimSuffix(header.Name, "/")
		switch header.Typeflag {
		case tar.TypeDir:
			files[name] = "/"
		case tar.TypeSymlink:
			files[name] = "-> " + header.Linkname
		default:
			content, err := io.ReadAll(archive)
			if err != nil {
				t.Fatal(err)
			}
			files[name] = string(content)
		}
	}
}

func write(t *testing.T, path, content string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLayerContainsFilesAndTheirDirectories(t *testing.T) {
	source := write(t, filepath.Join(t.TempDir(), "tool"), "binary")
	layer, err := Layer(
		File{Path: "/usr/bin/tool", From: source},
		File{Path: "/etc/tool.conf", Content: []byte("a: b\n"), Mode: 0o644},
		File{Path: "/bin/t", Link: "/usr/bin/tool"})
	if err != nil {
		t.Fatal(err)
	}
	image, err := New("arm64", v1.Config{Entrypoint: []string{"/usr/bin/tool"}}, layer)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"/bin": "/", "/etc": "/", "/usr": "/", "/usr/bin": "/",
		"/usr/bin/tool": "binary", "/etc/tool.conf": "a: b\n", "/bin/t": "-> /usr/bin/tool",
	}
	if diff := cmp.Diff(want, contents(t, image)); diff != "" {
		t.Error(diff)
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if config.OS != "linux" || config.Architecture != "arm64" || !slices.Equal(config.Config.Entrypoint, []string{"/usr/bin/tool"}) {
		t.Errorf("config %+v", config)
	}
}

func TestDigestDependsOnlyOnFiles(t *testing.T) {
	var digests []v1.Hash
	for range 2 {
		source := write(t, filepath.Join(t.TempDir(), "tool"), "binary")
		layer, err := Layer(File{Path: "/b", From: source}, File{Path: "/a", Content: []byte("x")})
		if err != nil {
			t.Fatal(err)
		}
		image, err := New("amd64", v1.Config{}, layer)
		if err != nil {
			t.Fatal(err)
		}
		digest, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests = append(digests, digest)
	}
	if digests[0] != digests[1] {
		t.Errorf("digests %v differ", digests)
	}
}

func TestPackNamesAMissingFile(t *testing.T) {
	_, err := Layer(File{Path: "/usr/bin/tool", From: "/nowhere/tool"})
	if err == nil || !strings.Contains(err.Error(), "/nowhere/tool") {
		t.Errorf("error %v, want one that names the file", err)
	}
}

func TestLibrariesOfACompiledProgramIncludeLoaderAndDynamicallyLoadedOnes(t *testing.T) {
	compilers := map[string]string{"amd64": "x86_64-linux-gnu-gcc", "arm64": "aarch64-linux-gnu-gcc"}
	compilers[runtime.GOARCH] = "gcc"
	for architecture, compiler := range compilers {
		t.Run(architecture, func(t *testing.T) {
			if _, err := exec.LookPath(compiler); err != nil {
				t.Skipf("%s is not on the PATH: nothing to compile the program with", compiler)
			}
			dir := t.TempDir()
			source := write(t, filepath.Join(dir, "p.c"), "#include <stdio.h>\nint main(void) { return puts(\"x\") < 0; }\n")
			program := filepath.Join(dir, "p")
			if said, err := exec.CommandContext(t.Context(), compiler, "-o", program, source).CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s", err, said)
			}
			files, err := Libraries(program, architecture)
			if err != nil {
				t.Fatal(err)
			}
			m := machines[architecture]
			for _, want := range []string{m.loader, "/lib/" + m.triplet + "/libc.so.6", "/lib/" + m.triplet + "/libm.so.6"} {
				if !slices.ContainsFunc(files, func(f File) bool { return f.Path == want }) {
					t.Errorf("no %s among %v", want, files)
				}
			}
			for _, file := range files {
				if is, err := architectureOf(file.From); err != nil || is != architecture {
					t.Errorf("%s is made for %s (error %v)", file.From, is, err)
				}
			}
		})
	}
}

func TestProductsHaveTheVersionThatTheChartNames(t *testing.T) {
	root := t.TempDir()
	write(t, filepath.Join(root, "charts/gpufabric/Chart.yaml"), "name: gpufabric\nversion: 9.9.9\nappVersion: 1.2.3\n")
	products, err := Products(root)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range products {
		names = append(names, p.Name)
	}
	want := []string{"ghcr.io/gpufabric/gpufabric:1.2.3", "ghcr.io/gpufabric/gpufabric-scheduler:1.2.3", "ghcr.io/gpufabric/fakefabric:1.2.3"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	for _, p := range products {
		for architecture, remedy := range map[string]string{runtime.GOARCH: "make build", other(): "make cross"} {
			if _, err := p.Build(root, architecture); err == nil || !strings.Contains(err.Error(), remedy) {
				t.Errorf("%s for %s without binaries: error %v, want one that says %q", p.Name, architecture, err, remedy)
			}
		}
	}
}

func other() string {
	if runtime.GOARCH == "amd64" {
		return "arm64"
	}
	return "amd64"
}

func TestImageHasItsProgramsAndTheFirstIsItsEntrypoint(t *testing.T) {
	root := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"gpufabric", "gpufabric-node"} {
		write(t, filepath.Join(root, "bin", name), string(binary))
	}
	image, err := program(root, []string{"gpufabric", "gpufabric-node"}, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	files := contents(t, image)
	if files["/usr/bin/gpufabric"] == "" || files["/usr/bin/gpufabric-node"] == "" {
		t.Error("the image lacks a program")
	}
	config, err := image.ConfigFile()
	if err != nil {
		t.Fatal(err)
	}
	if got := config.Config.Entrypoint; !slices.Equal(got, []string{"/usr/bin/gpufabric"}) {
		t.Errorf("entrypoint %q", got)
	}
}

func TestFakefabricFindsItsLibrariesBesideItself(t *testing.T) {
	root := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	binary, err := os.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	write(t, filepath.Join(root, "fakes/build/fakefabric"), string(binary))
	write(t, filepath.Join(root, "fakes/build/lib/libnvidia-ml.so.1"), "library")
	image, err := fakefabric(root, runtime.GOARCH)
	if err != nil {
		t.Fatal(err)
	}
	files := contents(t, image)
	if files["/usr/lib/fakefabric/fakefabric"] == "" || files["/usr/lib/fakefabric/lib/libnvidia-ml.so.1"] != "library" {
		t.Errorf("the image lacks the program or its library")
	}
	if got := files["/usr/bin/fakefabric"]; got != "-> /usr/lib/fakefabric/fakefabric" {
		t.Errorf("/usr/bin/fakefabric is %.60q", got)
	}
}

// The hook and what writes its arguments into CDI specs (nvcdi, in the drivers) are of one version.
func TestHookHasTheVersionOfTheDriversModule(t *testing.T) {
	required := func(path string) string {
		t.Helper()
		content, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(content)) {
			if _, version, ok := strings.Cut(strings.TrimSpace(line), "github.com/NVIDIA/nvidia-container-toolkit "); ok {
				return version
			}
		}
		t.Fatalf("%s requires no nvidia-container-toolkit", path)
		return ""
	}
	drivers, hook := required("../../drivers/go.mod"), required("../toolchain/modules/nvidia-container-toolkit/go.mod")
	if drivers != hook {
		t.Errorf("the drivers are built with nvidia-container-toolkit %s, the hook with %s", drivers, hook)
	}
}
