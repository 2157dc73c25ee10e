//go:build rdmakernel

package rdmakernel

import (
	"bufio"
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"gpufabric.io/build/filelock"
	"gpufabric.io/build/repository"
	"gpufabric.io/build/toolchain"
)

var only = flag.String("guest.run", "", "run the guest's tests that match, as go test -run")

// patience is how long the guest may take. It takes about 20 s where nothing else runs.
const patience = 10 * time.Minute

// result is how a guest's test ended, as the testing package writes it.
var result = regexp.MustCompile(`^--- (PASS|FAIL|SKIP): (\S+) \(`)

// TestRDMAOnDebiansKernel is all tests of drivers/rdma/kerneltest, which run in the guest, as tests of this one.
func TestRDMAOnDebiansKernel(t *testing.T) {
	began := time.Now()
	command := prepare(t)
	t.Logf("packages, module and test binary were ready after %.1f s", time.Since(began).Seconds())
	console, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	command.Stderr = os.Stderr
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	var said []string // since the last test ended
	ended := ""       // the guest's init prints it last
	lines := bufio.NewScanner(console)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := strings.TrimRight(lines.Text(), "\r")
		fmt.Println("guest |", line)
		said = append(said, line)
		if status, found := strings.CutPrefix(line, "guest ended: "); found {
			ended = status
		}
		// The lines of a test that failed come before its result, and those of its subtests behind.
		if match := result.FindStringSubmatch(line); match != nil {
			text := strings.Join(said, "\n")
			said = nil
			t.Run(match[2], func(t *testing.T) {
				switch match[1] {
				case "FAIL":
					t.Error("failed in the guest:\n" + text)
				case "SKIP":
					t.Skip("skipped in the guest:\n" + text)
				}
			})
		}
	}
	if err := command.Wait(); err != nil {
		t.Errorf("QEMU: %v", err)
	}
	if ended != "0" {
		t.Errorf("the guest ended with %q, not 0; its last lines:\n%s", ended, strings.Join(said[max(0, len(said)-60):], "\n"))
	}
	t.Logf("all of it took %.1f s", time.Since(began).Seconds())
}

// prepare makes the command that runs the guest.
func prepare(t *testing.T) *exec.Cmd {
	t.Helper()
	root, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	cache, err := toolchain.CacheRoot()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(cache, "rdma-kernel")
	if err := os.MkdirAll(cache, 0o755); err != nil {
		t.Fatal(err)
	}
	unlock, err := filelock.Lock(t.Context(), dir+".lock", func() { t.Log("waiting for another process that prepares the RDMA kernel") })
	if err != nil {
		t.Fatal(err)
	}
	defer unlock()
	tree, err := unpack(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	module, err := tree.buildModule(t.Context(), filepath.Join(root, "tests/rdmakernel/testhca/testhca.c"), dir)
	if err != nil {
		t.Fatal(err)
	}
	init := filepath.Join(t.TempDir(), "init")
	build := exec.CommandContext(t.Context(), "go", "test", "-c", "-tags", "rdmaguest", "-o", init, "./rdma/kerneltest")
	build.Dir, build.Env = filepath.Join(root, "drivers"), append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if said, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", build.Args, err, said)
	}
	initramfs := filepath.Join(t.TempDir(), "initramfs")
	if err := tree.initramfs(initramfs, init, module); err != nil {
		t.Fatal(err)
	}
	arguments := []string{"-test.v", "-test.timeout=5m"}
	if *only != "" {
		arguments = append(arguments, "-test.run="+*only)
	}
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	t.Cleanup(cancel)
	return tree.machine(ctx, initramfs, arguments...)
}
