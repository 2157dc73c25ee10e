package suite

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Page is the page of the long suite's runs. It is the suite's state too: a part that has passed at a commit is not run again there.
const Page = "docs/reports/evidence-runs.md"

// Record is the last run of a part.
type Record struct {
	Part   string
	Commit string    // abbreviated; with -dirty where the checkout had changes
	Began  time.Time // UTC, to a minute
	Took   time.Duration
	Result string // "passed", or "failed: " and one line
}

// Passed reports whether the part passed at the commit. Changes that are not committed could be any.
func (r Record) Passed(commit string) bool {
	return r.Result == passed && r.Commit == commit && !strings.HasSuffix(commit, dirty)
}

const (
	passed = "passed"
	dirty  = "-dirty"
	notRun = "not run yet"
	layout = "2006-01-02 15:04"
)

// RecordOf is the record of a result.
func RecordOf(r Result, commit string) Record {
	out := Record{Part: r.Part, Commit: commit, Began: r.Began.UTC(), Took: r.Took, Result: passed}
	if r.Failure != "" {
		out.Result = "failed: " + r.Failure
	}
	return out
}

// Render returns the page: a line for each part, with its last run.
func Render(parts []Part, records map[string]Record) string {
	var out strings.Builder
	out.WriteString("# Runs of the long suite\n\n" +
		"The last run of each part of `make test-long`, which writes this page; do not edit. The commit is the last one that changed " +
		"anything but this page.\n\n| part | command | commit | began (UTC) | minutes | result |\n|---|---|---|---|---:|---|\n")
	for _, part := range parts {
		record, ok := records[part.Name]
		if !ok {
			fmt.Fprintf(&out, "| %s | %s | - | - | - | %s |\n", part.Name, code(part.Command), notRun)
			continue
		}
		fmt.Fprintf(&out, "| %s | %s | %s | %s | %.1f | %s |\n", part.Name, code(part.Command), record.Commit,
			record.Began.Format(layout), record.Took.Minutes(), cell(record.Result))
	}
	return out.String()
}

// code writes a command as code in a cell, where a bar would end the cell.
func code(command string) string { return "`" + strings.ReplaceAll(command, "|", `\|`) + "`" }

// cell writes a line of output as text: a bar would end the cell, and a bracket might begin a link.
func cell(text string) string {
	text = strings.NewReplacer("|", "/", "`", "'", "[", "(", "]", ")", "<", "(", ">", ")", "*", "").Replace(text)
	return strings.Join(strings.Fields(text), " ")
}

var recorded = regexp.MustCompile("^\\| ([a-z0-9-]+) \\| `.*` \\| ([0-9a-z-]*) \\| ([0-9: -]*) \\| ([0-9.-]*) \\| (.*) \\|$")

// Records reads the page of a checkout. A page that is not there has no records.
func Records(root string) (map[string]Record, error) {
	content, err := os.ReadFile(filepath.Join(root, Page))
	if errors.Is(err, fs.ErrNotExist) {
		return map[string]Record{}, nil
	}
	if err != nil {
		return nil, err
	}
	return parse(string(content))
}

func parse(page string) (map[string]Record, error) {
	_, table, ok := strings.Cut(page, "|---|---|---|---|---:|---|\n")
	if !ok {
		return nil, fmt.Errorf("%s has no table of runs; remove the file and run the suite from its beginning", Page)
	}
	out := map[string]Record{}
	for line := range strings.Lines(table) {
		line = strings.TrimSpace(line)
		match := recorded.FindStringSubmatch(line)
		if match == nil {
			return nil, fmt.Errorf("%s: %q is not the line of a part; remove it, and the part runs again", Page, line)
		}
		if match[5] == notRun {
			continue
		}
		began, err := time.Parse(layout, match[3])
		if err != nil {
			return nil, fmt.Errorf("%s: part %s began at %q, which is not a time: %w", Page, match[1], match[3], err)
		}
		minutes, err := strconv.ParseFloat(match[4], 64)
		if err != nil {
			return nil, fmt.Errorf("%s: part %s took %q, which is not a number of minutes: %w", Page, match[1], match[4], err)
		}
		out[match[1]] = Record{Part: match[1], Commit: match[2], Began: began, Took: time.Duration(minutes * float64(time.Minute)),
			Result: match[5]}
	}
	return out, nil
}

// Write writes the page of a checkout. A process that is killed before the end leaves the old page.
func Write(root string, parts []Part, records map[string]Record) error {
	path := filepath.Join(root, Page)
	half := path + ".new"
	if err := os.WriteFile(half, []byte(Render(parts, records)), 0o644); err != nil {
		return err
	}
	return os.Rename(half, path)
}

// Commit is the last commit of a checkout that changed anything but the page, with -dirty where there are changes besides.
func Commit(ctx context.Context, root string) (string, error) {
	others := []string{"--", ".", ":!" + Page}
	commit, err := git(ctx, root, append([]string{"log", "-1", "--format=%h"}, others...)...)
	if err != nil {
		return "", err
	}
	changes, err := git(ctx, root, append([]string{"status", "--porcelain"}, others...)...)
	if err != nil {
		return "", err
	}
	if changes != "" {
		commit += dirty
	}
	return commit, nil
}

func git(ctx context.Context, root string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, "git", args...)
	cmd.Dir = root
	out, err := cmd.Output()
	if err != nil {
		return "", fmt.Errorf("git %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}

// Names are the names of parts.
func Names(parts []Part) []string {
	var names []string
	for _, part := range parts {
		names = append(names, part.Name)
	}
	return names
}
