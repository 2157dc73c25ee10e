package images

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"sort"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"sigs.k8s.io/yaml"

	"gpufabric.io/build/repository"
)

// Product is an image that this repository ships.
type Product struct {
	Name  string // such as ghcr.io/gpufabric/gpufabric:0.1.0
	build func(root, architecture string) (v1.Image, error)
}

// ShortName is the name without registry and tag, such as gpufabric.
func (p Product) ShortName() string {
	name, _, _ := strings.Cut(path.Base(p.Name), ":")
	return name
}

// ShortNames are the short names of products, in their order.
func ShortNames(products []Product) []string {
	names := make([]string, 0, len(products))
	for _, p := range products {
		names = append(names, p.ShortName())
	}
	return names
}

// Checkout returns the root of the checkout and its products.
func Checkout() (root string, products []Product, err error) {
	if root, err = repository.Root(); err != nil {
		return "", nil, err
	}
	products, err = Products(root)
	return root, products, err
}

// Products lists the project's images at the version in the chart.
func Products(root string) ([]Product, error) {
	version, err := chartVersion(filepath.Join(root, "charts/gpufabric/Chart.yaml"))
	if err != nil {
		return nil, err
	}
	return []Product{
		{"ghcr.io/gpufabric/gpufabric:" + version, gpufabric},
		{"ghcr.io/gpufabric/gpufabric-scheduler:" + version, scheduler},
		{"ghcr.io/gpufabric/fakefabric:" + version, fakefabric},
	}, nil
}

// chartVersion is the image tag of a chart with an empty image.tag.
func chartVersion(path string) (string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	var chart struct {
		AppVersion string `json:"appVersion"`
	}
	if err := yaml.Unmarshal(content, &chart); err != nil {
		return "", fmt.Errorf("read %s: %w", path, err)
	}
	if chart.AppVersion == "" {
		return "", fmt.Errorf("%s has no appVersion", path)
	}
	return chart.AppVersion, nil
}

// Build makes the product's image for amd64 or arm64 from what `make build` (this machine's architecture) or `make cross` (the other) built
// in the checkout at root.
func (p Product) Build(root, architecture string) (v1.Image, error) {
	image, err := p.build(root, architecture)
	if err != nil {
		return nil, fmt.Errorf("image %s for %s: %w", p.Name, architecture, err)
	}
	return image, nil
}

// gpufabric has both programs, gpufabric for the roles that run once in a cluster and gpufabric-node for those of each node, and the files
// that the latter install on their hosts: the hook, with its licence, and the library that limits shares of GPUs.
func gpufabric(root, architecture string) (v1.Image, error) {
	const hook = "nvidia-cdi-hook"
	path, err := built(filepath.Join(root, "bin"), hook, architecture)
	if err != nil {
		return nil, err
	}
	if needs, err := imported(path); err != nil || len(needs) > 0 {
		return nil, fmt.Errorf(
			"%s needs %v of the host that it is put on (error: %w): link it statically, as `make build` does",
			path,
			needs,
			err,
		)
	}
	further := []File{
		{Path: "/usr/bin/" + hook, From: path},
		{Path: "/usr/share/doc/" + hook + "/LICENSE", From: path + ".LICENSE", Mode: 0o644},
	}
	// The checkout of an earlier version, which a test upgrades from, may have no library yet.
	sources := filepath.Join(root, "drivers/gpu/limiter")
	if _, err := os.Stat(sources); !errors.Is(err, fs.ErrNotExist) {
		limiter, err := built(filepath.Join(sources, "build"), "libvgpu.so", architecture)
		if err != nil {
			return nil, err
		}
		further = append(further, File{Path: "/usr/lib/gpufabric/libvgpu.so", From: limiter, Mode: 0o644})
	}
	names := []string{"gpufabric", "gpufabric-node"}
	// Nor have earlier versions a program of their own for nodes.
	if _, err := os.Stat(filepath.Join(root, "drivers/cmd/gpufabric-node")); errors.Is(err, fs.ErrNotExist) {
		names = names[:1]
	}
	return program(root, names, architecture, further...)
}

func scheduler(root, architecture string) (v1.Image, error) {
	return program(root, []string{"gpufabric-scheduler"}, architecture)
}

// user is the default user of the images' programs, without rights on the node. Roles that need root request it in their pods.
const user = "65532:65532"

// program is an image of programs, the shared libraries that they need, and further files, nothing else; the first program is its
// entrypoint. It has no certificates of authorities: the programs connect to the API server, whose authority comes with the service
// account, and to each other.
func program(root string, names []string, architecture string, further ...File) (v1.Image, error) {
	var binaries []File
	libraries := further
	for _, name := range names {
		binary, err := built(filepath.Join(root, "bin"), name, architecture)
		if err != nil {
			return nil, err
		}
		needed, err := Libraries(binary, architecture)
		if err != nil {
			return nil, err
		}
		for _, library := range needed {
			if !slices.ContainsFunc(libraries, func(f File) bool { return f.Path == library.Path }) {
				libraries = append(libraries, library)
			}
		}
		binaries = append(binaries, File{Path: "/usr/bin/" + name, From: binary})
	}
	// The libraries change less often than the programs, so they have their own layer.
	libraryLayer, err := Layer(libraries...)
	if err != nil {
		return nil, err
	}
	programLayer, err := Layer(binaries...)
	if err != nil {
		return nil, err
	}
	layers := []v1.Layer{libraryLayer, programLayer}
	if names[0] == "gpufabric" {
		hostLayer, err := Layer(hostLinks()...)
		if err != nil {
			return nil, err
		}
		layers = append(layers, hostLayer)
	}
	return New(architecture, v1.Config{Entrypoint: []string{"/usr/bin/" + names[0]}, User: user}, layers...)
}

// hostLinks make /host a root that programs of the node find their loader and libraries in, when the node's /usr is mounted in it (chart,
// value hardware.driverDirectories): the links that every distribution with a merged /usr has.
func hostLinks() []File {
	var links []File
	for _, name := range []string{"bin", "lib", "lib64", "sbin"} {
		links = append(links, File{Path: "/host/" + name, Link: "usr/" + name})
	}
	return links
}

// fakefabric is the program and, in lib beside it, the libraries that it puts into fake nodes.
func fakefabric(root, architecture string) (v1.Image, error) {
	binary, err := built(filepath.Join(root, "fakes/build"), "fakefabric", architecture)
	if err != nil {
		return nil, err
	}
	const home = "/usr/lib/fakefabric/"
	files := []File{{Path: home + "fakefabric", From: binary}, {Path: "/usr/bin/fakefabric", Link: home + "fakefabric"}}
	libraries, err := filepath.Glob(filepath.Join(filepath.Dir(binary), "lib", "*"))
	if err != nil {
		return nil, err
	}
	if len(libraries) == 0 {
		return nil, fmt.Errorf("no libraries in %s: run `make build`", filepath.Join(filepath.Dir(binary), "lib"))
	}
	sort.Strings(libraries)
	for _, library := range libraries {
		files = append(files, File{Path: home + "lib/" + filepath.Base(library), From: library})
	}
	layer, err := Layer(files...)
	if err != nil {
		return nil, err
	}
	return New(architecture, v1.Config{Entrypoint: []string{home + "fakefabric"}, User: user}, layer)
}

// built returns the path of a binary: DIR/NAME for this machine's architecture, DIR/ARCHITECTURE/NAME for another.
func built(dir, name, architecture string) (string, error) {
	path, remedy := filepath.Join(dir, name), "make build"
	if architecture != runtime.GOARCH {
		path, remedy = filepath.Join(dir, architecture, name), "make cross"
	}
	is, err := architectureOf(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is not there: run `%s`", path, remedy)
	}
	if err != nil {
		return "", err
	}
	if is != architecture {
		return "", fmt.Errorf("%s is made for %s, not %s: run `%s`", path, is, architecture, remedy)
	}
	return path, nil
}
