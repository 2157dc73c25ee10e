//go:build runtimes

package runtimes_test

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"gpufabric.io/build/toolchain"
)

// release is a version of containerd, and the programs of it.
type release struct {
	version       string // such as v2.3.4
	program, shim string
}

// releases are the versions that gpufabric serves, each built from its module.
func releases(t *testing.T) []release {
	t.Helper()
	names := []string{"containerd-1.7", "containerd-shim-runc-v2-1.7", "containerd", "containerd-shim-runc-v2"}
	paths, err := toolchain.Ensure(t.Context(), names...)
	if err != nil {
		t.Fatal(err)
	}
	return []release{{toolchain.Containerd1, paths[names[0]], paths[names[1]]}, {toolchain.Containerd, paths[names[2]], paths[names[3]]}}
}

// before2 reports whether it is containerd 1.x, whose CRI plugin is one plugin with another name.
func (r release) before2() bool { return strings.HasPrefix(r.version, "v1.") }

// runtime is the container runtime as its kubelet reports it.
func (r release) runtime() string { return "containerd://" + strings.TrimPrefix(r.version, "v") }

// daemon is a running containerd with directories of its own.
type daemon struct {
	release
	directory string // what it keeps, and its socket; short, for the sake of Unix sockets
	runtime   cri.RuntimeServiceClient
	images    cri.ImageServiceClient
}

// place is a directory for a containerd. Its configuration, which a test writes, is below etc.
func place(t *testing.T) string {
	t.Helper()
	directory, err := os.MkdirTemp("/tmp", "cd-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(directory); err != nil {
			t.Error(err)
		}
	})
	if err := os.Mkdir(filepath.Join(directory, "etc"), 0o755); err != nil {
		t.Fatal(err)
	}
	return directory
}

// start runs a containerd with the configuration etc/config.toml of a directory, and ends it with the test.
func (r release) start(t *testing.T, directory string) *daemon {
	t.Helper()
	log, err := os.Create(filepath.Join(directory, "log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(r.program, "--config", filepath.Join(directory, "etc/config.toml"), "--root", filepath.Join(directory, "root"),
		"--state", filepath.Join(directory, "state"), "--address", filepath.Join(directory, "s"))
	cmd.Env = append(os.Environ(), "PATH="+filepath.Dir(r.shim)+":"+os.Getenv("PATH"), "TMPDIR="+directory)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended, cancel := context.WithCancelCause(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = cmd.Wait() // ProcessState has the result
		cancel(fmt.Errorf("containerd ended: %s", cmd.ProcessState))
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM) // it may have ended
		select {
		case <-done:
		case <-time.After(30 * time.Second):
			t.Error("containerd runs 30 s after SIGTERM: it is killed")
			_ = cmd.Process.Kill() // it ends now
			<-done
		}
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("the log of containerd %s:\n%s", r.version, text)
		}
		_ = log.Close() // it was read
	})

	connection, err := grpc.NewClient("unix://"+filepath.Join(directory, "s"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = connection.Close() }) // nothing is written to it any more
	d := &daemon{release: r, directory: directory, runtime: cri.NewRuntimeServiceClient(connection),
		images: cri.NewImageServiceClient(connection)}
	ctx, stop := context.WithTimeout(ended, time.Minute)
	defer stop()
	got, err := d.runtime.Version(ctx, &cri.VersionRequest{}, grpc.WaitForReady(true))
	if err != nil {
		t.Fatalf("containerd %s does not serve CRI: %v (%v)", r.version, err, context.Cause(ended))
	}
	if got.RuntimeVersion != r.version {
		t.Errorf("containerd reports version %s, want %s", got.RuntimeVersion, r.version)
	}
	return d
}

// dump is the configuration that containerd itself makes of etc/config.toml in a directory: its files merged with its defaults.
func (r release) dump(t *testing.T, directory string) (string, error) {
	t.Helper()
	var out, failed bytes.Buffer
	cmd := exec.CommandContext(t.Context(), r.program, "--config", filepath.Join(directory, "etc/config.toml"), "config", "dump")
	cmd.Stdout, cmd.Stderr = &out, &failed
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("containerd %s config dump: %w: %s", r.version, err, failed.String())
	}
	return out.String(), nil
}
