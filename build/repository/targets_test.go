package repository

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"
)

var (
	declared = regexp.MustCompile(`(?m)^([a-z0-9-]+):`)
	quoted   = regexp.MustCompile("`(?:[A-Z_]+=[^ `]+ )*make ([^`&|;\n]+)")        // in prose and in comments
	command  = regexp.MustCompile(`^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*make ([^#|;&>]+)`) // in a block of commands
	staged   = regexp.MustCompile(`(?m)^\s*stage \S+ make (.+)$`)                  // in .ci/run
	target   = regexp.MustCompile(`^[a-z][a-z0-9-]*$`)
	pinned   = regexp.MustCompile(`^[\w./-]+@[0-9a-f]{40}$`)
	matrixed = "make ${{ matrix.target }}"
)

// targets are the targets among make's arguments.
func targets(arguments string) []string {
	var names []string
	for _, word := range strings.Fields(arguments) {
		if strings.HasPrefix(word, "-C") {
			return nil // another Makefile's
		}
		if word = strings.TrimRight(word, ".,:"); target.MatchString(word) {
			names = append(names, word)
		}
	}
	return names
}

func TestTargetsNamedInDocumentsExist(t *testing.T) {
	root, err := Root()
	must(t, err)
	makefile, err := os.ReadFile(filepath.Join(root, "Makefile"))
	must(t, err)
	exists := map[string]bool{}
	for _, match := range declared.FindAllStringSubmatch(string(makefile), -1) {
		exists[match[1]] = true
	}
	named := 0
	expect := func(where string, names []string) {
		for _, name := range names {
			named++
			if !exists[name] {
				t.Errorf("%s names make %s, which the Makefile has not", where, name)
			}
		}
	}
	for _, file := range tracked(t, root) {
		content, err := os.ReadFile(filepath.Join(root, file))
		if os.IsNotExist(err) {
			continue // removed and not committed yet
		}
		must(t, err)
		text := string(content)
		switch {
		case file == ".ci/run":
			for _, match := range staged.FindAllStringSubmatch(text, -1) {
				expect(file, targets(match[1]))
			}
		case strings.HasPrefix(file, ".github/workflows/"):
			expect(file, workflowTargets(t, file, content))
		}
		for _, match := range quoted.FindAllStringSubmatch(text, -1) {
			expect(file, targets(match[1]))
		}
		if strings.HasSuffix(file, ".md") {
			expect(file, blockTargets(text))
		}
	}
	if named < 50 {
		t.Errorf("only %d names of targets were found: the search has gone blind", named)
	}
}

// blockTargets are the targets in a page's fenced blocks.
func blockTargets(page string) []string {
	var names []string
	inside := false
	for line := range strings.Lines(page) {
		if strings.HasPrefix(strings.TrimSpace(line), "```") {
			inside = !inside
			continue
		}
		if match := command.FindStringSubmatch(line); inside && match != nil {
			names = append(names, targets(match[1])...)
		}
	}
	return names
}

// workflowTargets are the targets that a workflow's steps call, those of a matrix included.
func workflowTargets(t *testing.T, file string, content []byte) []string {
	t.Helper()
	var workflow struct {
		Jobs map[string]struct {
			Strategy struct {
				Matrix struct {
					Target  []string `json:"target"`
					Include []struct {
						Target string `json:"target"`
					} `json:"include"`
				} `json:"matrix"`
			} `json:"strategy"`
			Steps []struct {
				Uses string `json:"uses"`
				Run  string `json:"run"`
			} `json:"steps"`
		} `json:"jobs"`
	}
	if err := yaml.Unmarshal(content, &workflow); err != nil {
		t.Fatalf("read %s: %v", file, err)
	}
	var names []string
	for name, job := range workflow.Jobs {
		before := len(names)
		for _, step := range job.Steps {
			if step.Run == matrixed {
				names = append(names, job.Strategy.Matrix.Target...)
				for _, include := range job.Strategy.Matrix.Include {
					names = append(names, include.Target)
				}
			} else if match := command.FindStringSubmatch(step.Run); match != nil {
				names = append(names, targets(match[1])...)
			}
			if step.Uses != "" && !pinned.MatchString(step.Uses) {
				t.Errorf("%s: %s is pinned to no commit", file, step.Uses)
			}
		}
		if len(names) == before {
			t.Errorf("%s: job %s calls no make target", file, name)
		}
	}
	return names
}

// tracked are the repository's text files, those not committed yet included.
func tracked(t *testing.T, root string) []string {
	t.Helper()
	list := exec.CommandContext(t.Context(), "git", "ls-files", "--cached", "--others", "--exclude-standard", "-z")
	list.Dir = root
	said, err := list.Output()
	if err != nil {
		t.Skipf("git does not list the files of %s (%v)", root, err)
	}
	var files []string
	for file := range strings.SplitSeq(strings.TrimRight(string(said), "\x00"), "\x00") {
		switch filepath.Ext(file) {
		case ".go", ".md", ".sh", ".yml", ".yaml", ".tf", ".c", ".h", ".mod", "", ".txt":
			if info, err := os.Lstat(filepath.Join(root, file)); err == nil && info.Mode().IsRegular() {
				files = append(files, file)
			}
		}
	}
	return files
}

func TestTargetsAreFoundWhereTheyAreNamed(t *testing.T) {
	page := "Say `make demo`, or `DEMO=sim make demo test`; make sure that it works.\n```\n$ make unit  # quick\nmake -C fakes " +
		"all\nNODES=\"18\" make bench\n```\nmake nothing\n"
	if got := strings.Join(blockTargets(page), " "); got != "unit bench" {
		t.Errorf("in blocks: %q", got)
	}
	var prose []string
	for _, match := range quoted.FindAllStringSubmatch(page, -1) {
		prose = append(prose, targets(match[1])...)
	}
	if got := strings.Join(prose, " "); got != "demo demo test" {
		t.Errorf("in prose: %q", got)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
