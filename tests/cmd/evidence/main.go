// Command evidence writes docs/evidence.md from the directives beside the tests; with --check it only says whether the page is as it would be written.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"path/filepath"

	"gpufabric.io/tests/evidence"
	"gpufabric.io/build/repository"
)

func main() {
	check := flag.Bool("check", false, "write nothing; fail where the page is not up to date")
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
	text, err := evidence.Render(root)
	if err != nil {
		return err
	}
	path := filepath.Join(root, evidence.Page)
	if !check {
		return os.WriteFile(path, []byte(text), 0o644)
	}
	if now, err := os.ReadFile(path); err != nil || string(now) != text {
		return errors.Join(err, fmt.Errorf("%s is not what the directives beside the tests say: run `make generate`", evidence.Page))
	}
	return nil
}
