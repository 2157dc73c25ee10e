package machine

import (
	"cmp"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

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

// settings are what is kept of a runtime's configuration: a configuration may contain the passwords of registries.
type settings struct {
	cdi, nri string // "on", "off"; empty: not set
	dirs     []string
	cdiFrom  string // the file that sets cdi, on the node
	read     bool   // a file was read
}

// runtimeOf reads which of CDI and NRI a container runtime has on, from its configuration and its version's defaults. name is as the
// kubelet reports it: containerd://2.1.0. The directories are those of the runtime's configuration; missing ones are skipped.
//
// Sources: containerd v1.7 and v2.3.4 pkg/cri/config and internal/cri/config (CDI is off by default before 2.0, and cannot be switched
// off from 2.4 on), pkg/nri/config.go, cmd/containerd/server/config/config.go (imports); cri-o v1.34.0
// pkg/config/config.go, internal/config/nri.
func runtimeOf(name string, directories []driver.Place, f *preflight.Facts) error {
	kind, text, _ := strings.Cut(name, "://")
	v, err := version.ParseGeneric(text)
	if err != nil {
		return fmt.Errorf("the version of the container runtime %q cannot be read: %w", name, err)
	}
	r := reader{places: directories, replaces: kind == "containerd" && v.Major() < 2}
	var s settings
	switch kind {
	case "containerd":
		s, err = r.containerd()
	case "cri-o":
		s, err = r.crio()
	default:
		return fmt.Errorf("the container runtime %s is unknown: its documentation says whether it reads CDI specs", name)
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
	switch {
	case always:
		f.CDI = "on"
	case f.CDI == "off" && s.cdi == "off":
		f.CDIWhy = "enable_cdi = false in " + s.cdiFrom
	case f.CDI == "off":
		f.CDIWhy = f.Runtime + " has CDI off where enable_cdi = true is not set"
	}
	if s.read && len(f.SpecDirs) == 0 {
		f.SpecDirs = []string{"/etc/cdi", "/var/run/cdi"}
	}
}

// reader reads files of a node.
type reader struct {
	places []driver.Place
	// replaces: a later file's table of a plugin replaces that of an earlier one as a whole, as in containerd before 2.0.
	replaces bool
}

// containerd reads config.toml of the first directory that has one, and what it imports, in containerd's order.
func (r reader) containerd() (settings, error) {
	var s settings
	var pending []string
	for _, place := range r.places {
		name := filepath.Join(place.Host, "config.toml")
		if _, err := os.Stat(r.here(name)); err == nil && len(pending) == 0 {
			pending = []string{name}
		}
		if parts, err := filepath.Glob(filepath.Join(place.Path, "conf.d", "*.part")); err == nil && filepath.Base(place.Path) == "cri" {
			slices.Sort(parts) // Talos joins these into a file that its containerd reads
			for _, part := range parts {
				pending = append(pending, place.OnHost(part))
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
			return s, fmt.Errorf("containerd's configuration imports more than %d files, and was not read", maxFiles)
		}
		text, err := r.read(name)
		if err != nil {
			return s, err
		}
		s.read = true
		var imports []string
		one := tables(text)
		if one.cri || !r.replaces {
			s.cdi, s.cdiFrom = choose(one.cdi, s.cdi, r.replaces), choose(from(one.cdi, name), s.cdiFrom, r.replaces)
			if len(one.dirs) > 0 || r.replaces {
				s.dirs = one.dirs
			}
		}
		if one.plugin || !r.replaces {
			s.nri = choose(one.nri, s.nri, r.replaces)
		}
		for _, pattern := range one.imports {
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(name), pattern)
			}
			found, err := r.glob(pattern)
			if err != nil {
				return settings{}, err
			}
			imports = append(imports, found...)
		}
		pending = append(pending, imports...)
	}
	return s, nil
}

func from(value, name string) string {
	if value == "" {
		return ""
	}
	return name
}

// choose takes a later file's value; one without it keeps the earlier value, unless the later replaces its whole table.
func choose(later, earlier string, replaces bool) string {
	if later != "" || replaces {
		return later
	}
	return earlier
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
			text, err := r.read(name)
			if err != nil {
				return s, err
			}
			one := tables(text)
			s.read, s.nri = true, cmp.Or(one.nri, s.nri)
			if len(one.dirs) > 0 {
				s.dirs = one.dirs
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

// glob returns the files of the node that match, sorted. A pattern outside the directories is an error: those files were not seen.
func (r reader) glob(pattern string) ([]string, error) {
	path := r.here(filepath.Clean(pattern))
	if path == "" {
		return nil, fmt.Errorf("the container runtime's configuration imports %s, which is outside the directories that were looked into",
			pattern)
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

func (r reader) read(name string) (string, error) {
	path := r.here(name)
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return "", fmt.Errorf("read the container runtime's configuration: %w", err)
	case info.Size() > maxConfiguration || !info.Mode().IsRegular():
		return "", fmt.Errorf("the container runtime's configuration %s is not a file of at most %d bytes, and was not read", name,
			maxConfiguration)
	}
	text, err := os.ReadFile(path)
	if err != nil {
		return "", fmt.Errorf("read the container runtime's configuration: %w", err)
	}
	return string(text), nil
}

// file is what one file sets.
type file struct {
	cdi, nri      string
	dirs, imports []string
	cri, plugin   bool // it has the table of the CRI plugin, or of NRI
}

// tables reads the keys that matter: enable_cdi and cdi_spec_dirs of containerd's CRI plugin (io.containerd.grpc.v1.cri in version 2,
// io.containerd.cri.v1.runtime in version 3) and of CRI-O's crio.runtime; disable of io.containerd.nri.v1.nri; enable_nri of crio.nri;
// imports.
func tables(text string) file {
	var f file
	table, key, value := "", "", ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(uncommented(line))
		switch {
		case key != "": // an array continues
			value += line
		case strings.HasPrefix(line, "["):
			table = strings.NewReplacer(`"`, "", "'", "", " ", "").Replace(strings.Trim(line, "[] \t"))
			f.cri = f.cri || strings.Contains(table, "io.containerd.grpc.v1.cri") || strings.Contains(table, "io.containerd.cri.v1.runtime")
			f.plugin = f.plugin || strings.Contains(table, "io.containerd.nri.v1.nri")
			continue
		default:
			var is bool
			if key, value, is = strings.Cut(line, "="); !is {
				key = ""
				continue
			}
			key, value = strings.TrimSpace(key), strings.TrimSpace(value)
		}
		if strings.HasPrefix(value, "[") && !strings.HasSuffix(value, "]") && len(value) < maxConfiguration {
			continue
		}
		f.set(table, key, value)
		key = ""
	}
	return f
}

// uncommented cuts a comment off, and leaves a # inside quotes.
func uncommented(line string) string {
	var quote rune
	for i, c := range line {
		switch {
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote = c
		case quote == 0 && c == '#':
			return line[:i]
		}
	}
	return line
}

func (f *file) set(table, key, value string) {
	cri := table == "plugins.io.containerd.grpc.v1.cri" || table == "plugins.io.containerd.cri.v1.runtime"
	truth := map[string]string{"true": "on", "false": "off"}[value]
	switch {
	case key == "enable_cdi" && cri && truth != "":
		f.cdi = truth
	case key == "cdi_spec_dirs" && (cri || table == "crio.runtime"):
		f.dirs = list(value)
	case key == "disable" && table == "plugins.io.containerd.nri.v1.nri" && truth != "":
		f.nri = onOff(truth == "off")
	case key == "enable_nri" && table == "crio.nri" && truth != "":
		f.nri = truth
	case key == "imports" && table == "":
		f.imports = list(value)
	}
}

// list reads an array of strings.
func list(value string) []string {
	var out []string
	for one := range strings.SplitSeq(strings.Trim(value, "[] \t"), ",") {
		if one = strings.Trim(one, " \t\"'"); one != "" {
			out = append(out, one)
		}
	}
	return out
}

func onOff(on bool) string {
	if on {
		return "on"
	}
	return "off"
}
