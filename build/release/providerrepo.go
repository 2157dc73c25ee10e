package release

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// ProviderRepository writes the provider of the commit that is checked out as a repository of its own to dir, because the Terraform
// registry takes a provider from a repository named terraform-provider-NAME alone. The packages of drivers and build that it imports come
// along in directories of their names; charts and examples, which its tests read, too. dir must not exist.
func ProviderRepository(ctx context.Context, root, dir string) error {
	commit, err := Head(ctx, root, "0.0.0")
	if err != nil {
		return err
	}
	if err := os.Mkdir(dir, 0o755); err != nil {
		return fmt.Errorf("make the provider's repository: %w", err)
	}
	source, err := os.MkdirTemp("", "source")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(source) }()
	if err := Export(ctx, root, commit, source); err != nil {
		return err
	}
	packages, err := imported(ctx, source)
	if err != nil {
		return err
	}
	for _, name := range []string{"provider", "examples"} {
		target := dir
		if name == "examples" {
			target = filepath.Join(dir, "examples") // beside the provider's own, whose directories have other names
		}
		if err := copyTree(filepath.Join(source, name), target); err != nil {
			return err
		}
	}
	for _, name := range []string{"charts", "build/toolchain/modules"} {
		if err := copyTree(filepath.Join(source, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, name := range packages {
		if err := copyPackage(filepath.Join(source, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	for _, name := range []string{"LICENSE", ".gitignore", "build/go.mod", "build/go.sum", "drivers/go.mod", "drivers/go.sum"} {
		if err := copyFile(filepath.Join(source, name), filepath.Join(dir, name)); err != nil {
			return err
		}
	}
	return errors.Join(relocate(dir), write(filepath.Join(dir, "go.work"), "go 1.26.0\n\nuse .\n"),
		write(filepath.Join(dir, "ORIGIN.md"), fmt.Sprintf(
			"Made from [gpufabric](%s) at commit %s by `release provider-repository`. Send changes there.\n", Source, commit.Hash)))
}

// imported are the directories of the project's packages that the provider and its tests import from outside provider/.
func imported(ctx context.Context, source string) ([]string, error) {
	command := exec.CommandContext(ctx, "go", "list", "-deps", "-test", "-f",
		`{{with .Module}}{{if or (eq .Path "gpufabric.io/drivers") (eq .Path "gpufabric.io/build")}}{{$.Dir}}{{end}}{{end}}`, "./...")
	command.Dir, command.Env = filepath.Join(source, "provider"), environment("GOWORK=off")
	var said bytes.Buffer
	command.Stderr = &said
	out, err := command.Output()
	if err != nil {
		return nil, fmt.Errorf("list what the provider imports: %w: %s", err, said.String())
	}
	var names []string
	for line := range strings.FieldsSeq(string(out)) {
		name, err := filepath.Rel(source, line)
		if err != nil {
			return nil, err
		}
		names = append(names, name)
	}
	return names, nil
}

// relocate mends the paths that were of the monorepo: of replaced modules, of what tests read, and of pages.
func relocate(dir string) error {
	edit := func(path string, pairs ...string) error {
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		return write(path, strings.NewReplacer(pairs...).Replace(string(text)))
	}
	if err := edit(filepath.Join(dir, "go.mod"), "=> ../", "=> ./"); err != nil {
		return err
	}
	if err := edit(filepath.Join(dir, "README.md"), "](../", "]("+Source+"/blob/main/"); err != nil {
		return err
	}
	tests, err := filepath.Glob(filepath.Join(dir, "internal/*/*_test.go"))
	for _, path := range tests {
		err = errors.Join(err, edit(path, `"../../../`, `"../../`, `"../../.."`, `"../.."`))
	}
	return err
}

func write(path, text string) error { return os.WriteFile(path, []byte(text), 0o644) }

// copyTree copies files and links, with their modes.
func copyTree(from, to string) error { return os.CopyFS(to, os.DirFS(from)) }

// copyPackage copies a Go package without its tests.
func copyPackage(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	for _, entry := range entries {
		if entry.Type().IsRegular() && !strings.HasSuffix(entry.Name(), "_test.go") {
			if err := copyFile(filepath.Join(from, entry.Name()), filepath.Join(to, entry.Name())); err != nil {
				return err
			}
		}
	}
	return nil
}

func copyFile(from, to string) error {
	content, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
		return err
	}
	return os.WriteFile(to, content, 0o644)
}
