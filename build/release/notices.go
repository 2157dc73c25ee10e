package release

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	gomodule "golang.org/x/mod/module"
)

// Texts finds the licences of modules: those of others in the module cache, Go's own below its root, the project's in the commit.
type Texts struct {
	ModuleCache, GoRoot, Root string
}

var licenceFile = regexp.MustCompile(`(?i)^(un)?(licen[cs]e|copying|notice|copyright|patents)([.-].*)?$`)

// licences returns the licence texts of a module, by file name. Every module has one.
func (t Texts) licences(m module) (map[string][]byte, error) {
	dir := t.Root
	switch {
	case m.Path == "std":
		dir = t.GoRoot
	case !own(m):
		path, err := gomodule.EscapePath(m.Path)
		if err != nil {
			return nil, err
		}
		version, err := gomodule.EscapeVersion(m.Version)
		if err != nil {
			return nil, err
		}
		dir = filepath.Join(t.ModuleCache, path+"@"+version)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("look for the licence of %s %s: %w", m.Path, m.Version, err)
	}
	texts := map[string][]byte{}
	for _, entry := range entries {
		if !licenceFile.MatchString(entry.Name()) || entry.IsDir() || strings.HasSuffix(entry.Name(), ".go") {
			continue
		}
		if texts[entry.Name()], err = os.ReadFile(filepath.Join(dir, entry.Name())); err != nil {
			return nil, err
		}
	}
	if len(texts) == 0 {
		return nil, fmt.Errorf("%s %s has no licence in %s: a release carries the licence of every module", m.Path, m.Version, dir)
	}
	return texts, nil
}

// own recognises the project's modules, which have the repository's licence.
func own(m module) bool {
	return strings.HasPrefix(m.Path, "gpufabric.io/") || m.Version == "" || m.Version == "(devel)"
}

// notices returns one text with the licences of all that components have of others.
func (t Texts) notices(all []component) ([]byte, error) {
	var out bytes.Buffer
	out.WriteString("Licences and notices of the Go modules and C libraries in this artifact of gpufabric.\n")
	for _, m := range programs(all) {
		if own(m) {
			continue
		}
		texts, err := t.licences(m)
		if err != nil {
			return nil, err
		}
		for _, name := range sortedKeys(texts) {
			fmt.Fprintf(&out, "\n== %s %s: %s\n\n%s\n", m.Path, m.Version, name, texts[name])
		}
	}
	for _, l := range libraries(all) {
		text, err := l.texts()
		if err != nil {
			return nil, err
		}
		fmt.Fprintf(&out, "\n== Debian's package %s %s\n\n%s\n", l.Package, l.Version, text)
	}
	return out.Bytes(), nil
}

// marks are words that only one licence has, the more special licences first.
var marks = []struct{ words, spdx string }{
	{"Mozilla Public License Version 2.0", "MPL-2.0"},
	{"Apache License Version 2.0", "Apache-2.0"},
	{"apache.org/licenses/LICENSE-2.0", "Apache-2.0"},
	{"Permission is hereby granted, free of charge, to any person obtaining a copy", "MIT"},
	{"Neither the name", "BSD-3-Clause"},
	{"names of its contributors may be used to endorse", "BSD-3-Clause"},
	{"Redistribution and use in source and binary forms", "BSD-2-Clause"},
	{"Permission to use, copy, modify, and/or distribute this software", "ISC"},
	{"Permission to use, copy, modify, and distribute this software", "ISC"},
}

// identifier is the licence of texts as SPDX names it, several joined by AND, or NOASSERTION where a text is none of the common ones.
func identifier(texts map[string][]byte) string {
	var found []string
	for _, name := range sortedKeys(texts) {
		if strings.HasPrefix(strings.ToUpper(name), "NOTICE") || strings.HasPrefix(strings.ToUpper(name), "PATENTS") {
			continue
		}
		text := strings.Join(strings.Fields(string(texts[name])), " ")
		spdx := "NOASSERTION"
		for _, mark := range marks {
			if strings.Contains(text, mark.words) {
				spdx = mark.spdx
				break
			}
		}
		if !slices.Contains(found, spdx) {
			found = append(found, spdx)
		}
	}
	if len(found) == 0 || slices.Contains(found, "NOASSERTION") {
		return "NOASSERTION"
	}
	slices.Sort(found)
	return strings.Join(found, " AND ")
}
