// Command pages writes the pages that are generated from the code: the fields in docs/resources
// from the CRDs. With --check it only reports the pages that are out of date.
package main

import (
	"errors"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"

	"gpufabric.io/build/repository"
	"gpufabric.io/tests/reference"
)

func main() {
	check := flag.Bool("check", false, "write nothing; fail where a page is not up to date")
	flag.Parse()
	if err := run(*check); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(check bool) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	pages, err := reference.Render(root)
	if err != nil {
		return err
	}
	var stale []error
	for _, path := range slices.Sorted(maps.Keys(pages)) {
		file := filepath.Join(root, path)
		if now, err := os.ReadFile(file); err == nil && string(now) == pages[path] {
			continue
		}
		if check {
			stale = append(stale, fmt.Errorf("%s is not what the code says: run `make generate`", path))
			continue
		}
		if err := os.WriteFile(file, []byte(pages[path]), 0o644); err != nil {
			return err
		}
	}
	return errors.Join(stale...)
}
