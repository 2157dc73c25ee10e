// Command attacks runs the tests that attack (package gpufabric.io/tests/attacks) and prints, attack by attack, how each ended
// and the attacker's view. It needs neither Docker nor root. For an attack that does not run it prints the reason.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"

	"gpufabric.io/build/repository"
	"gpufabric.io/tests/attacks"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context, out io.Writer) error {
	root, err := repository.Root()
	if err != nil {
		return err
	}
	all, err := attacks.Collect(root)
	if err != nil {
		return err
	}
	here := slices.DeleteFunc(slices.Clone(all), attacks.Attack.NeedsKind)
	refused := 0
	var failed []string
	for len(here) > 0 {
		directory := here[0].Directory
		end := slices.IndexFunc(here, func(a attacks.Attack) bool { return a.Directory != directory })
		if end < 0 {
			end = len(here)
		}
		group := here[:end]
		here = here[end:]
		said, err := test(ctx, root, directory, group)
		if err != nil {
			return err
		}
		for _, a := range group {
			reported := said[a.Test]
			fmt.Fprintf(out, "%-8s %s: %s (%s %s)\n", reported.result(), a.Name, a.Words, a.Directory, a.Test)
			switch reported.result() {
			case passed:
				refused++
			case failure:
				failed = append(failed, a.Name)
			}
		}
		for _, name := range tests(group) {
			for _, line := range said[name].lines {
				fmt.Fprintf(out, "         %s\n", line)
			}
		}
	}
	fmt.Fprintf(out, "%d of %d attacks refused; %d need containers: make kind-e2e\n", refused, len(all), len(all)-len(slices.DeleteFunc(
		slices.Clone(all), attacks.Attack.NeedsKind)))
	if len(failed) > 0 {
		return fmt.Errorf("not refused: %s", strings.Join(failed, ", "))
	}
	return nil
}

// tests are the test functions of a group of attacks.
func tests(group []attacks.Attack) []string {
	var names []string
	for _, a := range group {
		names = append(names, a.Test)
	}
	slices.Sort(names)
	return slices.Compact(names)
}

const (
	passed  = "refused"
	failure = "FAILED"
)

// outcome is the result of a test.
type outcome struct {
	action string
	// lines are the attacker's view, or the reason why the test failed or was skipped.
	lines []string
}

func (o outcome) result() string {
	switch o.action {
	case "pass":
		return passed
	case "skip":
		return "skipped"
	}
	return failure
}

// event is a line of go test -json.
type event struct{ Action, Test, Output string }

// test runs the tests of one directory.
func test(ctx context.Context, root, directory string, group []attacks.Attack) (map[string]outcome, error) {
	cmd := exec.CommandContext(ctx, "go", "test", "-json", "-count=1", "-vet=off", "-timeout=20m",
		"-run=^("+strings.Join(tests(group), "|")+")$", ".")
	cmd.Dir = filepath.Join(root, directory)
	if own, err := isolated(root, directory); err != nil {
		return nil, err
	} else if own {
		cmd.Env = append(os.Environ(), "GOWORK=off")
	}
	cmd.Stderr = os.Stderr
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	said, readErr := read(pipe)
	err = cmd.Wait()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		err = nil // a test failed, or did not build: it has no result
	}
	return said, errors.Join(readErr, err)
}

func read(pipe io.Reader) (map[string]outcome, error) {
	said := map[string]outcome{}
	lines := bufio.NewScanner(pipe)
	lines.Buffer(nil, 16<<20)
	for lines.Scan() {
		var e event
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			continue
		}
		if e.Test == "" {
			if e.Action == "build-output" || strings.HasPrefix(e.Output, "FAIL") {
				fmt.Fprint(os.Stderr, e.Output)
			}
			continue
		}
		name, part, _ := strings.Cut(e.Test, "/")
		o := said[name]
		switch e.Action {
		case "pass", "fail", "skip":
			if part == "" {
				o.action = e.Action
			}
		case "output":
			text := strings.TrimSpace(e.Output)
			_, saw, reported := strings.Cut(text, attacks.Seen)
			switch {
			case reported:
				if part != "" {
					saw = part + ": " + saw
				}
				o.lines = append(o.lines, attacks.Seen+saw)
			case strings.Contains(text, "_test.go:"):
				o.lines = append(o.lines, text)
			}
		}
		said[name] = o
	}
	return said, lines.Err()
}

// isolated reports whether a directory's module is outside of go.work.
func isolated(root, directory string) (bool, error) {
	work, err := os.ReadFile(filepath.Join(root, "go.work"))
	if err != nil {
		return false, err
	}
	for d := directory; d != "."; d = filepath.Dir(d) {
		if _, err := os.Stat(filepath.Join(root, d, "go.mod")); err == nil {
			return !slices.Contains(strings.Fields(string(work)), "./"+d), nil
		}
	}
	return false, fmt.Errorf("%s is in no module", directory)
}
