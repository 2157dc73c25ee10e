// Command nvmldoc lists which NVML functions the library implements and which answer NOT_SUPPORTED:
//
//	nvmldoc <libnvidia-ml with symbols> <functions.txt> [NVML.md]
//
// With a file, it writes the implemented ones there; without, it prints all of them with their kind. It reads the library itself,
// so the list always matches the code.
package main

import (
	"debug/elf"
	"errors"
	"fmt"
	"os"
	"strings"
)

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: nvmldoc <library> <functions.txt> [NVML.md]")
		os.Exit(2)
	}
	if err := run(os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "nvmldoc:", err)
		os.Exit(1)
	}
}

func run(library, functions string, out []string) error {
	implemented, err := implementedIn(library)
	if err != nil {
		return fmt.Errorf("%s: %w", library, err)
	}
	text, err := os.ReadFile(functions)
	if err != nil {
		return err
	}
	var have, stubs []string
	for _, name := range strings.Fields(string(text)) {
		if implemented[name] {
			have = append(have, name)
		} else {
			stubs = append(stubs, name)
		}
	}
	if len(out) == 0 {
		for _, name := range have {
			fmt.Println("implemented   ", name)
		}
		for _, name := range stubs {
			fmt.Println("NOT_SUPPORTED ", name)
		}
		return nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# NVML functions\n\nWritten by `make -C fakes functions` from the library itself; do not edit.\n\n"+
		"libnvidia-ml.so.1 exports all %d functions of go-nvml's nvml.h, nvmlErrorString, and the table that nvidia-smi asks for "+
		"(nvml/export.c). %d are implemented over the node's state; the other %d\n"+
		"answer NVML_ERROR_NOT_SUPPORTED (`make -C fakes functions-list` prints them). FAKEFABRIC_TRACE shows which of them a client calls.\n\n",
		len(have)+len(stubs), len(have), len(stubs))
	for _, name := range have {
		fmt.Fprintf(&b, "- %s\n", name)
	}
	return os.WriteFile(out[0], []byte(b.String()), 0o644)
}

func implementedIn(library string) (names map[string]bool, err error) {
	f, err := elf.Open(library)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	symbols, err := f.Symbols()
	if err != nil {
		return nil, err
	}
	names = map[string]bool{}
	for _, s := range symbols {
		if name, ok := strings.CutPrefix(s.Name, "impl_"); ok && s.Section != elf.SHN_UNDEF {
			names[name] = true
		}
	}
	return names, nil
}
