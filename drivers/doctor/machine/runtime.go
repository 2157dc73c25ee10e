package machine

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
	"k8s.io/apimachinery/pkg/util/version"

	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/drivers/hardware/driver"
)

const (
	// maxConfiguration bounds how much of a file is read, in bytes. containerd's own default configuration has 10 KiB.
	maxConfiguration = 1 << 20
	// maxFiles bounds how many files of a configuration are read.
	maxFiles = 64
)

// settings are the parts of a runtime's configuration that are used: a configuration may contain the passwords of registries.
type settings struct {
	cdi, nri string   // "on", "off"; empty: not set
	dirs     []string // nil: not set
	from     string   // the file that sets cdi, on the node
	dirsFrom string   // the file that sets dirs
	read     bool     // a file was read
}

// runtimeOf reads which of CDI and NRI a container runtime has on, from its configuration and its version's defaults. name is as the
// kubelet reports it: containerd://2.1.0. The directories are those of the runtime's configuration; missing ones are skipped.
//
// Sources: containerd v1.7.35 pkg/cri/config and services/server/config/config.go, v2.1.5 and v2.3.4 internal/cri/config,
// plugins/cri/runtime/plugin.go, cmd/containerd/server/config/config.go (CDI is off by default before 2.0, and cannot be switched off from
// 2.4 on), pkg/nri/config.go; cri-o v1.34.0 pkg/config/config.go, internal/config/nri. tests/runtimes compares this with containerd.
func runtimeOf(name string, directories []driver.Place, f *preflight.Facts) error {
	kind, text, _ := strings.Cut(name, "://")
	v, err := version.ParseGeneric(text)
	if err != nil {
		return fmt.Errorf("the version of the container runtime %q cannot be read: %w", name, err)
	}
	r := reader{places: directories}
	var s settings
	switch kind {
	case "containerd":
		s, err = r.containerd(v)
	case "cri-o":
		s, err = r.crio()
	default:
		return fmt.Errorf("the container runtime %s is unknown: see its documentation for whether it reads CDI specs", name)
	}
	f.Runtime = kind + " " + text
	if err != nil {
		return err
	}
	effective(kind, v, s, f)
	return nil
}

// effective combines a configuration with the defaults of a version.
func effective(kind string, v *version.Version, s settings, f *preflight.Facts) {
	since := func(text string) bool { return v.AtLeast(version.MustParseGeneric(text)) }
	always := kind == "cri-o" || since("2.4.0")
	byDefault := onOff(kind == "cri-o" && since("1.30.0") || kind == "containerd" && since("2.0.0"))
	if !s.read {
		byDefault = "" // its configuration is elsewhere
	}
	f.CDI, f.NRI, f.SpecDirs = cmp.Or(s.cdi, byDefault), cmp.Or(s.nri, byDefault), s.dirs
	if always {
		f.CDI = "on"
	}
	switch {
	case f.CDI == "off" && s.cdi == "off":
		f.CDIWhy = "enable_cdi = false in " + s.from
	case f.CDI == "off":
		f.CDIWhy = f.Runtime + " has CDI off where enable_cdi = true is not set"
	case s.dirs != nil && len(s.dirs) == 0:
		f.CDI, f.CDIWhy = "off", "cdi_spec_dirs is empty in "+s.dirsFrom
	}
	if s.read && s.dirs == nil {
		f.SpecDirs = []string{"/etc/cdi", "/var/run/cdi"}
	}
}

// reader reads files of a node.
type reader struct{ places []driver.Place }

// file is what is read of a file. Of containerd: the version of its configuration, the files that it imports, and the tables of plugins. Of
// CRI-O: its tables.
type file struct {
	name    string // on the node
	Version int
	Imports []string
	Plugins map[string]any
	CRIO    struct{ Runtime, NRI map[string]any }
}

// plugin is the table of a plugin, or nil.
func (f *file) plugin(name string) map[string]any {
	table, _ := f.Plugins[name].(map[string]any)
	return table
}

// Plugins of containerd whose settings matter. The first is the CRI plugin before 2.0. Version 1 of the configuration names two of them cri
// and nri.
const (
	criPlugin  = "io.containerd.grpc.v1.cri"
	cri2Plugin = "io.containerd.cri.v1.runtime"
	nriPlugin  = "io.containerd.nri.v1.nri"
)

// containerd reads config.toml of the first directory that has one, and what it imports, in containerd's order.
func (r reader) containerd(v *version.Version) (settings, error) {
	files, joined, err := r.files()
	if err != nil {
		return settings{}, err
	}
	s := settings{read: len(files) > 0}
	if v.Major() >= 2 {
		for _, one := range files {
			s.set(&one, one.migrated(v), one.plugin(nriPlugin))
		}
		return s, nil
	}
	// The names of plugins are those of the last version that a file sets, and a later file's table replaces that of an earlier one.
	last := 1
	if joined {
		last = 2
	}
	for _, one := range files {
		last = cmp.Or(one.Version, last)
	}
	cri, nri := criPlugin, nriPlugin
	if last == 1 {
		cri, nri = "cri", "nri"
	}
	for _, one := range files {
		if one.plugin(cri) != nil {
			s.cdi, s.from, s.dirs, s.dirsFrom = "", "", nil, ""
		}
		if one.plugin(nri) != nil {
			s.nri = ""
		}
		s.set(&one, one.plugin(cri), one.plugin(nri))
	}
	return s, nil
}

// migrated is the table of containerd 2's CRI plugin in one file: containerd fills it from the older plugin's where the file's version of
// the configuration is below its own, which is 4 since 2.3.
func (f *file) migrated(v *version.Version) map[string]any {
	table := maps.Clone(f.plugin(cri2Plugin))
	if f.Version == 4 || f.Version == 3 && v.LessThan(version.MustParseGeneric("2.3.0")) {
		return table
	}
	older := f.plugin(criPlugin)
	if older == nil && f.Version < 2 {
		older = f.plugin("cri")
	}
	if table == nil {
		return older
	}
	for key, value := range older {
		if _, ok := table[key]; !ok {
			table[key] = value
		}
	}
	return table
}

// set takes what the tables of a file set.
func (s *settings) set(f *file, cri, nri map[string]any) {
	if on, ok := cri["enable_cdi"].(bool); ok {
		s.cdi, s.from = onOff(on), f.name
	}
	if dirs, ok := cri["cdi_spec_dirs"].([]any); ok {
		s.dirs, s.dirsFrom = texts(dirs), f.name
	}
	if off, ok := nri["disable"].(bool); ok {
		s.nri = onOff(!off)
	}
}

// texts are the strings of an array, never nil.
func texts(array []any) []string {
	out := []string{}
	for _, one := range array {
		if text, ok := one.(string); ok {
			out = append(out, text)
		}
	}
	return out
}

// files reads containerd's files, in the order in which it merges them. joined: they are parts that Talos joins into a file that its
// containerd reads.
func (r reader) files() (files []file, joined bool, err error) {
	var pending []string
	for _, place := range r.places {
		name := filepath.Join(place.Host, "config.toml")
		if _, err := os.Stat(r.here(name)); err == nil && len(pending) == 0 {
			pending = []string{name}
		}
		if parts, err := filepath.Glob(filepath.Join(place.Path, "conf.d", "*.part")); err == nil && filepath.Base(place.Path) == "cri" {
			slices.Sort(parts)
			for _, part := range parts {
				pending, joined = append(pending, place.OnHost(part)), true
			}
		}
	}
	seen := map[string]bool{}
	for len(pending) > 0 {
		name := pending[0]
		if pending = pending[1:]; seen[name] {
			continue
		}
		if seen[name] = true; len(seen) > maxFiles {
			return nil, false, fmt.Errorf("containerd's configuration imports more than %d files, and was not read", maxFiles)
		}
		one, err := r.read(name)
		if err != nil {
			return nil, false, err
		}
		files = append(files, one)
		for _, pattern := range one.Imports {
			if pattern = filepath.Clean(pattern); !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(name), pattern)
			}
			found, err := r.glob(pattern)
			if err != nil {
				return nil, false, err
			}
			pending = append(pending, found...)
		}
	}
	return files, joined, nil
}

// crio reads crio.conf, then crio.conf.d in the order of names. Both set keys of [crio.runtime] and [crio.nri].
func (r reader) crio() (settings, error) {
	var s settings
	for _, place := range r.places {
		found, err := r.glob(filepath.Join(place.Host, "crio.conf.d", "*"))
		if err != nil {
			return s, err
		}
		main := filepath.Join(place.Host, "crio.conf")
		if _, err := os.Stat(r.here(main)); err == nil {
			found = append([]string{main}, found...)
		}
		for _, name := range found {
			one, err := r.read(name)
			if err != nil {
				return s, err
			}
			s.read = true
			if on, ok := one.CRIO.NRI["enable_nri"].(bool); ok {
				s.nri = onOff(on)
			}
			if dirs, ok := one.CRIO.Runtime["cdi_spec_dirs"].([]any); ok {
				s.dirs, s.dirsFrom = texts(dirs), name
			}
		}
	}
	return s, nil
}

// here is the path in this process of a file of the node, or empty where none of the directories has it.
func (r reader) here(name string) string {
	for _, place := range r.places {
		if below, err := filepath.Rel(place.Host, name); err == nil && below != ".." && !strings.HasPrefix(below, "../") {
			return filepath.Join(place.Path, below)
		}
	}
	return ""
}

// glob returns the files of the node that match, sorted; a path without * is one of a file. A pattern outside the directories is an error:
// those files were not seen.
func (r reader) glob(pattern string) ([]string, error) {
	path := r.here(filepath.Clean(pattern))
	if path == "" {
		return nil, fmt.Errorf("the container runtime's configuration imports %s, which is outside the directories that were looked into",
			pattern)
	}
	if !strings.Contains(pattern, "*") {
		return []string{pattern}, nil
	}
	found, err := filepath.Glob(path)
	if err != nil {
		return nil, fmt.Errorf("look for %s of the container runtime's configuration: %w", pattern, err)
	}
	for i, one := range found {
		for _, place := range r.places {
			if strings.HasPrefix(one, place.Path+"/") {
				found[i] = place.OnHost(one)
				break
			}
		}
	}
	return found, nil
}

// read reads a file. An error has no text of the file, which may contain a password.
func (r reader) read(name string) (file, error) {
	path := r.here(name)
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return file{}, fmt.Errorf("read the container runtime's configuration: %w", err)
	case info.Size() > maxConfiguration || !info.Mode().IsRegular():
		return file{}, fmt.Errorf("the container runtime's configuration %s is not a file of at most %d bytes, and was not read", name,
			maxConfiguration)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return file{}, fmt.Errorf("read the container runtime's configuration: %w", err)
	}
	one := file{name: name}
	if err := toml.Unmarshal(text, &one); err != nil {
		at := ""
		if where := (toml.ParseError{}); errors.As(err, &where) {
			at = fmt.Sprintf(" from line %d on", where.Position.Line)
		}
		return file{}, fmt.Errorf("the container runtime's configuration %s cannot be read%s: the runtime itself does not start with it",
			name, at)
	}
	return one, nil
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
