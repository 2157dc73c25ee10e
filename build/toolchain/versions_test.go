package toolchain

import (
	"cmp"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/mod/modfile"
	"golang.org/x/mod/semver"
)

// apart are modules whose programs are compiled for themselves: what they share with the others may have another version. Each has a
// reason.
var apart = map[string]string{
	"build/toolchain/modules/cert-manager":               "long suite alone; its authors test it with these versions",
	"build/toolchain/modules/containerd-1.7":             "`make test-runtimes` alone; its authors test it with these versions",
	"build/toolchain/modules/controller-gen":             "`make generate` alone; newer k8s.io/kube-openapi than Kubernetes 1.36",
	"build/toolchain/modules/cosign":                     "long suite alone; its authors test it with these versions",
	"build/toolchain/modules/dra-driver-nvidia-gpu":      "a peer, unmodified: its authors test it with these versions",
	"build/toolchain/modules/dra-driver-nvidia-gpu/nvfm": "stands in for a module that is not published",
	"build/toolchain/modules/golangci-lint":              "a linter finds with other versions other things",
	"build/toolchain/modules/gotestsum":                  "by hand alone",
	"build/toolchain/modules/govulncheck":                "`make vulncheck` alone",
	"build/toolchain/modules/helm4":                      "long suite alone; newer k8s.io/client-go than Kubernetes 1.36",
	"build/toolchain/modules/jobset":                     "long suite alone; its authors test it with these versions",
	"build/toolchain/modules/k8s-device-plugin":          "a peer, unmodified: its authors test it with these versions",
	"build/toolchain/modules/kubernetes-1.34":            "another version of Kubernetes, `make test-versions` alone",
	"build/toolchain/modules/kubernetes-1.35":            "another version of Kubernetes, `make test-versions` alone",
	"build/toolchain/modules/kubernetes-1.37":            "another version of Kubernetes, `make test-versions` alone",
	"build/toolchain/modules/kueue":                      "long suite alone; its authors test it with these versions",
	"build/toolchain/modules/lws":                        "long suite alone; its authors test it with these versions",
	"build/toolchain/modules/multus":                     "reads a field that k8s.io/kubelet 0.36 names in another way",
	"build/toolchain/modules/node-feature-discovery":     "a peer, unmodified: its authors test it with these versions",
	"build/toolchain/modules/opentofu":                   "long suite alone; its authors test it with these versions",
	"build/toolchain/modules/terraform/internal":         "stands in for modules that are not published",
	"build/toolchain/modules/vulndb":                     "`make vulncheck VULNDB=module` alone; follows its authors' versions",
	"tests/karpenter":                                    "long suite alone; Karpenter needs newer libraries than Kubernetes 1.36",
	"tests/conformance":                                  "imports peers, which need newer golang.org/x than the workspace",
}

// higher are the modules that may require versions above the list's, because their programs' own modules do. A lower one has no excuse.
var higher = []string{
	"build/toolchain/modules/containerd", "build/toolchain/modules/coredns", "build/toolchain/modules/crictl",
	"build/toolchain/modules/mpi-operator", "build/toolchain/modules/terraform",
}

// The list has the requirements of the workspace, its isolated modules and Kubernetes: the highest version of each module.
func TestModulesHaveOneVersionOfEachSharedDependency(t *testing.T) {
	required := map[string]map[string]string{} // directory, module path: version
	root := filepath.Join("..", "..")
	err := filepath.WalkDir(root, func(path string, entry fs.DirEntry, err error) error {
		if err != nil || entry.Name() != "go.mod" {
			return err
		}
		dir, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil || apart[dir] != "" {
			return err
		}
		required[dir], err = requirements(path)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for dir, reason := range apart {
		if _, err := os.Stat(filepath.Join(root, dir, "go.mod")); err != nil {
			t.Errorf("%s (%q) is an exception and no module: %v", dir, reason, err)
		}
	}

	list := map[string]string{}
	dirs := slices.SortedFunc(maps.Keys(required), func(a, b string) int { return cmp.Compare(tier(a), tier(b)) })
	owner := map[string]int{}
	for _, dir := range dirs {
		for path, version := range required[dir] {
			if list[path] == "" || (owner[path] == tier(dir) && semver.Compare(version, list[path]) > 0) {
				list[path], owner[path] = version, tier(dir)
			}
		}
	}
	for _, dir := range dirs {
		for path, version := range required[dir] {
			switch order := semver.Compare(version, list[path]); {
			case order < 0, order > 0 && !slices.Contains(higher, dir):
				t.Errorf("%s requires %s %s; every module has %s: in %s run `GOWORK=off go get %s@%s && GOWORK=off go mod tidy`, or give the module a "+
					"reason in this test", dir, path, version, list[path], dir, path, list[path])
			}
		}
	}
}

// tier orders whose versions count: the project's modules first, then Kubernetes, then the other tools.
func tier(dir string) int {
	switch {
	case !strings.HasPrefix(dir, "build/toolchain/modules/"):
		return 0
	case strings.HasSuffix(dir, "/kubernetes"):
		return 1
	default:
		return 2
	}
}

// requirements returns the versions of the modules that a go.mod requires, or puts in their place. Directories have none.
func requirements(path string) (map[string]string, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	file, err := modfile.Parse(path, content, nil)
	if err != nil {
		return nil, err
	}
	modules := map[string]string{}
	for _, require := range file.Require {
		modules[require.Mod.Path] = require.Mod.Version
	}
	for _, replace := range file.Replace {
		delete(modules, replace.Old.Path)
		if replace.New.Version != "" {
			modules[replace.New.Path] = replace.New.Version
		}
	}
	return modules, nil
}
