package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/build/repository"
)

// TestREADMEShowsTheDemosOutput runs `simcluster demo`, which is `make demo` without Docker, and compares README.md with
// its output: each line that README.md shows is printed, in that order; "..." stands for lines that are left out. Times,
// addresses and numbers may differ.
func TestREADMEShowsTheDemosOutput(t *testing.T) {
	if testing.Short() {
		t.Skip("brings a cluster of 18 simulated nodes up, for about a minute; -short does not")
	}
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(root, "bin/terraform-provider-gpufabric")); err != nil {
		t.Skip("the demo needs bin/terraform-provider-gpufabric: run make build")
	}
	content, err := os.ReadFile(filepath.Join(root, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	_, block, ok := strings.Cut(string(content), "```text\n")
	if !ok {
		t.Fatal("README.md does not show what the demo prints")
	}
	block, _, _ = strings.Cut(block, "```")

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
	defer cancel()
	demo, said := simcluster(ctx, newDir(t), "demo")
	if err := demo.Run(); err != nil {
		t.Fatalf("simcluster demo: %v\n%s", err, said)
	}
	if line := notPrinted(block, said.String()); line != "" {
		t.Fatalf("README.md shows %q, which the demo does not print there:\n%s", line, said)
	}
}

// notPrinted returns the first line of shown that is not printed after the lines before it.
func notPrinted(shown, printed string) string {
	lines := strings.Split(printed, "\n")
	for _, line := range strings.Split(strings.TrimSpace(shown), "\n") {
		if strings.TrimSpace(line) == "..." || strings.TrimSpace(line) == "" {
			continue
		}
		at := slices.IndexFunc(lines, func(p string) bool { return form(p) == form(line) })
		if at < 0 {
			return line
		}
		lines = lines[at+1:]
	}
	return ""
}

func TestREADMECheckNamesAMissingLine(t *testing.T) {
	const printed = "[1/2] a cluster ... 4.4 s\n[2/2] a domain ... \n      0/18\nnode-0006  4  127.16.6.9  Ready\n"
	if line := notPrinted("[1/2] a cluster ... 39 s\n...\nnode-0001  4  127.16.7.1   Ready\n", printed); line != "" {
		t.Errorf("%q is printed", line)
	}
	for _, shown := range []string{"[1/2] a clusters ... 4 s", "node-0001  4  127.16.7.1  NotReady", "0/18\n[1/2] a cluster ... 4.4 s"} {
		if notPrinted(shown, printed) == "" {
			t.Errorf("%q is not printed so", shown)
		}
	}
}

var (
	took   = regexp.MustCompile(`(:| \.\.\.)( [0-9.]+ s)?$`)
	number = regexp.MustCompile(`[0-9a-f]*[0-9][0-9a-f]*`)
	blanks = regexp.MustCompile(`\s+`)
)

// form is a line without the parts that differ from run to run.
func form(line string) string {
	line = took.ReplaceAllString(strings.TrimSpace(line), "")
	return blanks.ReplaceAllString(number.ReplaceAllString(line, "#"), " ")
}
