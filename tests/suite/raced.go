package suite

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
)

// Packages divides the packages of the patterns that have tests by the rule of the short suite: those whose own code, tests apart, starts
// a goroutine or imports sync, sync/atomic or errgroup run with the race detector, the others without. The long suite runs all with it.
func Packages(ctx context.Context, root string, patterns ...string) (raced, plain []string, err error) {
	args := []string{"list", "-json=ImportPath,Dir,GoFiles,CgoFiles,TestGoFiles,XTestGoFiles"}
	list := exec.CommandContext(ctx, "go", append(args, patterns...)...)
	list.Dir, list.Stderr = root, os.Stderr
	pipe, err := list.StdoutPipe()
	if err != nil {
		return nil, nil, err
	}
	if err := list.Start(); err != nil {
		return nil, nil, err
	}
	decoder := json.NewDecoder(pipe)
	for {
		var p struct {
			ImportPath, Dir                              string
			GoFiles, CgoFiles, TestGoFiles, XTestGoFiles []string
		}
		if err = decoder.Decode(&p); err != nil {
			break
		}
		if len(p.TestGoFiles)+len(p.XTestGoFiles) == 0 {
			continue
		}
		var files []string
		for _, name := range slices.Concat(p.GoFiles, p.CgoFiles) {
			files = append(files, filepath.Join(p.Dir, name))
		}
		concurrent, parsing := meets(files)
		if parsing != nil {
			err = parsing
			break
		}
		if concurrent {
			raced = append(raced, p.ImportPath)
		} else {
			plain = append(plain, p.ImportPath)
		}
	}
	if errors.Is(err, io.EOF) {
		err = nil
	}
	if waiting := list.Wait(); waiting != nil && err == nil {
		err = fmt.Errorf("go list %v: %w", patterns, waiting)
	}
	return raced, plain, err
}

// meets reports whether goroutines may meet in the code of some Go files.
func meets(files []string) (bool, error) {
	for _, path := range files {
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return false, err
		}
		for _, spec := range file.Imports {
			imported, err := strconv.Unquote(spec.Path.Value)
			if err != nil {
				return false, err
			}
			if slices.Contains([]string{"sync", "sync/atomic", "golang.org/x/sync/errgroup"}, imported) {
				return true, nil
			}
		}
		started := false
		ast.Inspect(file, func(n ast.Node) bool {
			_, is := n.(*ast.GoStmt)
			started = started || is
			return !started
		})
		if started {
			return true, nil
		}
	}
	return false, nil
}
