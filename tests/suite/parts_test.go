package suite

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/build/repository"
)

func TestPartsOfBothSuitesHaveLimitsAndAnOrder(t *testing.T) {
	for name, parts := range map[string][]Part{"short": Short(), "long": Long()} {
		if err := check(parts); err != nil {
			t.Errorf("the %s suite: %v", name, err)
		}
		for _, part := range parts {
			if part.Limit <= 0 || !strings.Contains(part.Command, "make ") {
				t.Errorf("the %s suite: part %s has the limit %s and the command %q, want a limit and a target of make", name, part.Name,
					part.Limit, part.Command)
			}
		}
	}
}

// TestLongSuiteMakesEveryTargetThatTests finds targets of the Makefile that run tests and belong to no suite.
func TestLongSuiteMakesEveryTargetThatTests(t *testing.T) {
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	var commands []string
	for _, part := range append(Short(), Long()...) {
		commands = append(commands, strings.Fields(part.Command)...)
	}
	elsewhere := []string{
		"unit", "test-raced", "test-plain", "test-sim", "charts", "test-scheduler", "test-conformance", // parts of test
		"test-tenants", // tests of test-modules and charts, with what attackers see
		"pages",        // of lint
		"firstday",     // asks this machine's GPUs
		"test-long",
	}
	target, found := "", 0
	head := regexp.MustCompile(`^([a-z][a-z0-9-]*):`)
	for line := range strings.Lines(string(makefile)) {
		if match := head.FindStringSubmatch(line); match != nil {
			target = match[1]
		}
		if !strings.HasPrefix(line, "\t") || !strings.Contains(line, "$(GO) test") || strings.HasPrefix(target, "bench") {
			continue
		}
		found++
		if !slices.Contains(commands, target) && !slices.Contains(elsewhere, target) {
			t.Errorf("make %s runs tests and is in neither suite", target)
		}
	}
	if found < 12 {
		t.Errorf("only %d lines of the Makefile run tests", found)
	}
}

// TestMakefileNamesTestsThatExist finds patterns of `go test -run` that match no test: it passes without one.
func TestMakefileNamesTestsThatExist(t *testing.T) {
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	function := regexp.MustCompile(`(?m)^func (Test\w+)\(`)
	for _, module := range []string{"build", "drivers", "fakes", "provider", "tests"} {
		if err := filepath.WalkDir(filepath.Join(root, module), func(path string, _ os.DirEntry, err error) error {
			if err != nil || !strings.HasSuffix(path, "_test.go") {
				return err
			}
			text, err := os.ReadFile(path)
			for _, match := range function.FindAllStringSubmatch(string(text), -1) {
				names = append(names, match[1])
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
	}
	patterns := regexp.MustCompile(`-run ['"]?([\w|]+)`).FindAllStringSubmatch(string(makefile), -1)
	if len(patterns) < 5 {
		t.Fatalf("only %d patterns of tests are in the Makefile", len(patterns))
	}
	for _, pattern := range patterns {
		for one := range strings.SplitSeq(pattern[1], "|") {
			if !slices.ContainsFunc(names, regexp.MustCompile(one).MatchString) {
				t.Errorf("the Makefile runs %s, and no test has that name", one)
			}
		}
	}
}
