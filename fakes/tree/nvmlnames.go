package tree

import (
	"bytes"
	"debug/elf"
	_ "embed"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// nvmlNames lists the functions of NVML that an older driver lacks: a line for each, the branch (550) and the name.
//
//go:embed nvmlnames.txt
var nvmlNames string

// newerThan lists the functions that came after a driver version such as 550.163.01.
func newerThan(version string) ([]string, error) {
	branch, _, _ := strings.Cut(version, ".")
	have, err := strconv.Atoi(branch)
	if err != nil {
		return nil, fmt.Errorf("driver version %q: %w", version, err)
	}
	var newer []string
	for line := range strings.Lines(nvmlNames) {
		first, name, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok || first == "#" {
			continue
		}
		since, err := strconv.Atoi(first)
		if err != nil {
			return nil, fmt.Errorf("nvmlnames.txt: %q: %w", line, err)
		}
		if since > have {
			newer = append(newer, name)
		}
	}
	return newer, nil
}

// Lacks reports whether a driver of a version such as 550.163.01 lacks a function of NVML. An unreadable version lacks none.
func Lacks(version, function string) bool {
	newer, err := newerThan(version)
	return err == nil && slices.Contains(newer, function)
}

// hideNames removes some exported names from a shared library of 64 bits: their entries in the table of dynamic symbols become
// empty, and nothing else changes. A lookup by hash finds the entry, compares the names, and goes on.
func hideNames(library []byte, names []string) ([]byte, error) {
	file, err := elf.NewFile(bytes.NewReader(library))
	if err != nil {
		return nil, fmt.Errorf("read the library: %w", err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return nil, fmt.Errorf("read the library's names: %w", err)
	}
	places := map[string]int{}
	for i, s := range symbols {
		if s.Section != elf.SHN_UNDEF {
			places[s.Name] = i + 1 // DynamicSymbols leaves out the first entry, which is empty
		}
	}
	table := file.SectionByType(elf.SHT_DYNSYM)
	out := bytes.Clone(library)
	for _, name := range names {
		place, ok := places[name]
		if !ok {
			return nil, fmt.Errorf("the library has no name %s to hide", name)
		}
		clear(out[table.Offset+uint64(place)*elf.Sym64Size:][:elf.Sym64Size])
	}
	return out, nil
}
