package simnode

import (
	"cmp"
	"path/filepath"
	"slices"
	"strings"
)

// Mapping means that a directory of a node or a container is the directory Real on the machine that simulates.
type Mapping struct {
	Path, Real string
}

// Paths translates names. A simulated node and its containers have no mount namespace: the names in manifests, flags and
// CDI specs are translated instead.
type Paths struct {
	mappings []Mapping // longest Path first
}

// NewPaths makes Paths. If several mappings cover a name, the longest one counts, and of equally long ones the last.
func NewPaths(mappings ...Mapping) Paths {
	sorted := make([]Mapping, 0, len(mappings))
	for _, m := range slices.Backward(mappings) {
		sorted = append(sorted, Mapping{Path: filepath.Clean(m.Path), Real: filepath.Clean(m.Real)})
	}
	slices.SortStableFunc(sorted, func(a, b Mapping) int { return cmp.Compare(len(b.Path), len(a.Path)) })
	return Paths{mappings: sorted}
}

// Real translates a name; ok is false where no mapping covers it.
func (p Paths) Real(name string) (real string, ok bool) {
	name = filepath.Clean(name)
	for _, m := range p.mappings {
		if rest, under := below(name, m.Path); under {
			return filepath.Join(m.Real, rest), true
		}
	}
	return "", false
}

// above reports whether a mapping is below the name.
func (p Paths) above(name string) bool {
	for _, m := range p.mappings {
		if rest, under := below(m.Path, filepath.Clean(name)); under && rest != "" {
			return true
		}
	}
	return false
}

// below reports whether name is dir or below it, and returns the rest of the name.
func below(name, dir string) (rest string, ok bool) {
	if dir == "/" {
		return strings.TrimPrefix(name, "/"), strings.HasPrefix(name, "/")
	}
	rest, ok = strings.CutPrefix(name, dir)
	if !ok || (rest != "" && rest[0] != '/') {
		return "", false
	}
	return strings.TrimPrefix(rest, "/"), true
}

// containerPaths translates the paths of a container: first its mounts, then the node's own directories, where a flag names
// their common parent (--kubelet-root=/var/lib/kubelet with mounts of its subdirectories), and last the kernel's file systems,
// which are the node's in every container.
type containerPaths struct {
	mounts, node Paths
}

func (c containerPaths) real(name string) (string, bool) {
	if real, ok := c.mounts.Real(name); ok {
		return real, true
	}
	clean := filepath.Clean(name)
	kernel := clean == "/proc" || clean == "/sys" || strings.HasPrefix(clean, "/proc/") || strings.HasPrefix(clean, "/sys/")
	if kernel || (clean != "/" && c.mounts.above(clean)) {
		return c.node.Real(clean)
	}
	return "", false
}

// argument translates an argument that is a path, or a flag with one (--flag=/path). It returns other arguments unchanged.
func (c containerPaths) argument(arg string) string {
	flag, value, isFlag := strings.Cut(arg, "=")
	if !isFlag || !strings.HasPrefix(arg, "-") {
		flag, value, isFlag = "", arg, false
	}
	if !strings.HasPrefix(value, "/") {
		return arg
	}
	real, ok := c.real(value)
	switch {
	case !ok:
		return arg
	case isFlag:
		return flag + "=" + real
	}
	return real
}

// variable translates the value of an environment variable that is one path.
func (c containerPaths) variable(value string) string {
	if !strings.HasPrefix(value, "/") || strings.Contains(value, ":") {
		return value
	}
	if real, ok := c.real(value); ok {
		return real
	}
	return value
}
