package main

import (
	"context"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gpufabric.io/build/repository"
)

// TestTheREADMEShowsWhatTheDemoPrints runs `simcluster demo`, which is `make demo` without Docker, and holds README.md to
// it: each line that README.md shows is printed, in that order; "..." stands for lines that are left out. Times, addresses
// and numbers may be others.
//
//shows:sim-demo
func TestTheREADMEShowsWhatTheDemoPrints(t *testing.T) {
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

	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	demo, said := simcluster(ctx, newDir(t), "demo")
	if err := demo.Run(); err != nil {
		t.Fatalf("simcluster demo: %v\n%s", err, said)
	}
	printed := strings.Split(said.String(), "\n")
	next := 0
	for _, line := range strings.Split(strings.TrimSpace(block), "\n") {
		if strings.TrimSpace(line) == "..." || strings.TrimSpace(line) == "" {
			continue
		}
		found := false
		for next < len(printed) && !found {
			found = form(printed[next]) == form(line)
			next++
		}
		if !found {
			t.Fatalf("README.md shows %q, which the demo does not print there:\n%s", line, said)
		}
	}
}

var (
	took   = regexp.MustCompile(`(:| \.\.\.)( [0-9.]+ s)?$`)
	number = regexp.MustCompile(`[0-9a-f]*[0-9][0-9a-f]*`)
	blanks = regexp.MustCompile(`\s+`)
)

// form is a line without what differs from run to run.
func form(line string) string {
	line = took.ReplaceAllString(strings.TrimSpace(line), "")
	return blanks.ReplaceAllString(number.ReplaceAllString(line, "#"), " ")
}
