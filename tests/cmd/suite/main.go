// Command suite runs the short suite or the long one (package gpufabric.io/tests/suite), and lists the packages that the short one runs
// with the race detector.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"gpufabric.io/build/repository"
	"gpufabric.io/build/toolchain"
	"gpufabric.io/tests/suite"
)

const pulse = 2 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command().ExecuteContext(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func command() *cobra.Command {
	root := &cobra.Command{Use: "suite", SilenceUsage: true, SilenceErrors: true}
	short := &cobra.Command{Use: "short", Short: "Run every part of the short suite", Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return runShort(cmd.Context(), cmd.OutOrStdout()) }}
	var again bool
	long := &cobra.Command{Use: "long [PART...]",
		Short: "Run the parts of the long suite that have not passed at this commit, and write " + suite.Page,
		RunE: func(cmd *cobra.Command, names []string) error {
			return runLong(cmd.Context(), cmd.OutOrStdout(), names, again)
		}}
	long.Flags().BoolVar(&again, "again", false, "run parts again that have passed")
	raced := &cobra.Command{Use: "packages raced|plain PATTERN...",
		Short: "List the packages with tests that the short suite runs with the race detector, or without",
		Args:  cobra.MinimumNArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			list, err := packages(cmd.Context(), args[0], args[1:])
			fmt.Fprintln(cmd.OutOrStdout(), strings.Join(list, "\n"))
			return err
		}}
	root.AddCommand(short, long, raced)
	return root
}

func packages(ctx context.Context, which string, patterns []string) ([]string, error) {
	root, err := repository.Root()
	if err != nil {
		return nil, err
	}
	raced, plain, err := suite.Packages(ctx, root, patterns...)
	switch which {
	case "raced":
		return raced, err
	case "plain":
		return plain, err
	}
	return nil, fmt.Errorf("packages %q: raced or plain", which)
}

// runner runs parts in the checkout, beside others or one by one. The logs are below .cache, which is not committed.
func runner(out io.Writer, suiteName string, parallel int) (*suite.Runner, error) {
	root, err := repository.Root()
	if err != nil {
		return nil, err
	}
	cache, err := toolchain.CacheRoot()
	if err != nil {
		return nil, err
	}
	if err := os.MkdirAll(cache, 0o755); err != nil {
		return nil, err
	}
	return &suite.Runner{Dir: root, Logs: filepath.Join(root, ".cache", suiteName), Out: out, Parallel: parallel, Pulse: pulse,
		Free: func() error { return suite.Free(root, os.TempDir(), cache) }}, nil
}

// runShort prints at its end all output of parts that failed, since the machine may be gone afterwards; then their failures, which whoever
// gets only the end of the output needs; then the time that each part took.
func runShort(ctx context.Context, out io.Writer) error {
	r, err := runner(out, "short", 3)
	if err != nil {
		return err
	}
	began := time.Now()
	results, err := r.Run(ctx, suite.Short(), func(result suite.Result) error { return explain(r, out, result) })
	var failed []string
	for _, result := range results {
		if result.Failure == "" {
			continue
		}
		failed = append(failed, result.Part)
		fmt.Fprintf(out, "\n=== all output of %s\n", result.Part)
		if log, err := os.ReadFile(filepath.Join(r.Logs, result.Part+".log")); err == nil {
			if _, err := out.Write(log); err != nil {
				return err
			}
		}
	}
	for _, result := range results {
		if result.Failure != "" {
			fmt.Fprintf(out, "\n=== failures of %s\n", result.Part)
			err = errors.Join(err, explain(r, out, result))
		}
	}
	fmt.Fprintln(out, "\n=== parts")
	for _, result := range results {
		fmt.Fprintln(out, result)
	}
	fmt.Fprintf(out, "all after %.0f s\n", time.Since(began).Seconds())
	if len(failed) > 0 {
		return errors.Join(err, fmt.Errorf("failed: %s", strings.Join(failed, ", ")))
	}
	return err
}

// explain prints a failed part's failures as soon as it ends.
func explain(r *suite.Runner, out io.Writer, result suite.Result) error {
	if result.Failure == "" {
		return nil
	}
	lines, err := r.Failures(result.Part)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it was not begun
	}
	for _, line := range lines {
		fmt.Fprintln(out, line)
	}
	return err
}

func runLong(ctx context.Context, out io.Writer, names []string, again bool) error {
	r, err := runner(out, "long", 1)
	if err != nil {
		return err
	}
	records, err := suite.Records(r.Dir)
	if err != nil {
		return err
	}
	commit, err := suite.Commit(ctx, r.Dir)
	if err != nil {
		return err
	}
	all := suite.Long()
	for _, name := range names {
		if !slices.ContainsFunc(all, func(p suite.Part) bool { return p.Name == name }) {
			return fmt.Errorf("the long suite has no part %q; its parts are %s", name, strings.Join(suite.Names(all), ", "))
		}
	}
	parts := slices.DeleteFunc(slices.Clone(all), func(p suite.Part) bool {
		if len(names) > 0 && !slices.Contains(names, p.Name) {
			return true
		}
		if !again && records[p.Name].Passed(commit) {
			fmt.Fprintf(out, "passed %s before, at this commit %s\n", p.Name, commit)
			return true
		}
		return false
	})
	results, err := r.Run(ctx, parts, func(result suite.Result) error {
		if ctx.Err() == nil { // an interrupted part has neither passed nor failed
			records[result.Part] = suite.RecordOf(result, commit)
		}
		return errors.Join(suite.Write(r.Dir, all, records), explain(r, out, result))
	})
	failed := slices.DeleteFunc(results, func(r suite.Result) bool { return r.Failure == "" })
	if len(failed) > 0 {
		var parts []string
		for _, one := range failed {
			parts = append(parts, one.Part)
		}
		return errors.Join(err, fmt.Errorf("failed: %s; their output is in %s; run the command again to begin with the first of them",
			strings.Join(parts, ", "), r.Logs))
	}
	return err
}
