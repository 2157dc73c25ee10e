package profile

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"gpufabric.io/fakes/profiles"
)

// Problem is one mistake in a profile file.
type Problem struct {
	// File and Line say where; Line counts from 1.
	File string
	Line int
	// Path is the key, e.g. gpus.devices[2].pci.
	Path string
	// Message says what is wrong and what is allowed.
	Message string
}

// Error gives "file:line: path: message".
func (p Problem) Error() string {
	return fmt.Sprintf("%s:%d: %s: %s", p.File, p.Line, p.Path, p.Message)
}

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

// Load reads the shipped profile of that name, or the profile file at that path. A path is told from a name by a slash or by .yaml at
// its end. All mistakes in the file are returned, joined, each a Problem.
func Load(nameOrFile string) (*Profile, error) {
	if strings.ContainsRune(nameOrFile, filepath.Separator) || strings.HasSuffix(nameOrFile, ".yaml") || strings.HasSuffix(nameOrFile, ".yml") {
		data, err := os.ReadFile(nameOrFile)
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
	var doc yaml.Node
	if err := yaml.Unmarshal(data, &doc); err != nil {
		return nil, Problem{File: file, Line: yamlLine(err), Path: "(file)", Message: strings.TrimPrefix(err.Error(), "yaml: ")}
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) == 0 {
		return nil, Problem{File: file, Line: 1, Path: "(file)", Message: "is empty; a profile is a mapping with name, summary, host and more"}
	}
	c := newChecker(file)
	c.check(doc.Content[0], profileType, "")
	if err := c.err(); err != nil {
		return nil, err
	}
	p := new(Profile)
	if err := doc.Content[0].Decode(p); err != nil {
		return nil, Problem{File: file, Line: yamlLine(err), Path: "(file)", Message: err.Error()}
	}
	c.semantics(p)
	if err := c.err(); err != nil {
		return nil, err
	}
	return p, nil
}

// Problems takes the error of Load or Parse apart.
func Problems(err error) []Problem {
	var one Problem
	var many interface{ Unwrap() []error }
	switch {
	case errors.As(err, &many):
		var all []Problem
		for _, e := range many.Unwrap() {
			all = append(all, Problems(e)...)
		}
		return all
	case errors.As(err, &one):
		return []Problem{one}
	}
	return nil
}

// yamlLine finds the line number that the YAML parser put into its message.
func yamlLine(err error) int {
	line := 1
	if i := strings.Index(err.Error(), "line "); i >= 0 {
		if _, scanErr := fmt.Sscanf(err.Error()[i:], "line %d", &line); scanErr != nil {
			return 1
		}
	}
	return line
}
