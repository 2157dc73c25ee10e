package profile

import (
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"gpufabric.io/fakes/internal/strict"
	"gpufabric.io/fakes/profiles"
)

// Problem is one mistake in a profile file, with its line and key.
type Problem = strict.Problem

// mostMiB is the largest profile file; those that ship have 12 kB at most.
const mostMiB = 1

// Names lists the profiles that ship with the program, sorted.
func Names() []string {
	entries, err := fs.ReadDir(profiles.FS, ".")
	if err != nil {
		return nil // an embedded directory can always be read
	}
	var names []string
	for _, e := range entries {
		names = append(names, strings.TrimSuffix(e.Name(), ".yaml"))
	}
	slices.Sort(names)
	return names
}

// Load reads the shipped profile of that name, or the profile file at that path. A path differs from a name by a slash or by .yaml at
// its end. All mistakes in the file are returned, joined, each a Problem.
func Load(nameOrFile string) (*Profile, error) {
	if strings.ContainsRune(nameOrFile, filepath.Separator) || strings.HasSuffix(nameOrFile, ".yaml") ||
		strings.HasSuffix(nameOrFile, ".yml") {
		data, err := strict.ReadFile(nameOrFile, mostMiB)
		if err != nil {
			return nil, fmt.Errorf("read profile: %w", err)
		}
		return Parse(nameOrFile, data)
	}
	data, err := fs.ReadFile(profiles.FS, nameOrFile+".yaml")
	if err != nil {
		return nil, fmt.Errorf("no profile %q; there are %s, or give the path of a .yaml file", nameOrFile, strings.Join(Names(), ", "))
	}
	return Parse(nameOrFile+".yaml", data)
}

// Parse reads a profile from YAML; file is only used in messages.
func Parse(file string, data []byte) (*Profile, error) {
	p := new(Profile)
	c := strict.Decode(file, data, p)
	if err := c.Err(); err != nil {
		return nil, err
	}
	(&checks{c}).semantics(p)
	if err := c.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

// Problems takes the error of Load or Parse apart.
func Problems(err error) []Problem { return strict.Problems(err) }
