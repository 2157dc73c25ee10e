package controlplane_test

import (
	"context"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"k8s.io/client-go/kubernetes"

	"gpufabric.io/tests/simcluster/controlplane"
	"gpufabric.io/tests/simcluster/process"
)

func binaries(t *testing.T) map[string]string {
	t.Helper()
	paths, err := controlplane.Binaries(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

func TestControlPlaneServesAndRemovesItsFiles(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	dir := t.TempDir()
	start := time.Now()
	plane, err := controlplane.Start(ctx, controlplane.Options{Dir: dir, Binaries: binaries(t)})
	if err != nil {
		t.Fatal(err)
	}
	defer plane.Stop()
	t.Logf("serves after %s", time.Since(start).Round(time.Millisecond))

	config, err := plane.Admin()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	// The controller manager makes this account, so it works and its credentials are right.
	if err := controlplane.AwaitDefaultAccount(ctx, client, "default"); err != nil {
		t.Fatal(err)
	}
	t.Logf("service account after %s", time.Since(start).Round(time.Millisecond))

	found, err := process.Find(dir)
	if err != nil || len(found) != len(controlplane.Programs()) {
		t.Fatalf("while it runs: found %v, %v; want %d processes", found, err, len(controlplane.Programs()))
	}
	plane.Stop()
	if found, err := process.Find(dir); err != nil || len(found) != 0 {
		t.Fatalf("after Stop: found %v, %v; want nothing", found, err)
	}
	if err := plane.Err(); err != nil {
		t.Errorf("a stopped control plane reports %v", err)
	}
}

func TestControlPlaneServesAPIsOfTheEmulatedVersion(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	plane, err := controlplane.Start(ctx, controlplane.Options{Dir: t.TempDir(), Binaries: binaries(t), Kubernetes: "1.34"})
	if err != nil {
		t.Fatal(err)
	}
	defer plane.Stop()
	config, err := plane.Admin()
	if err != nil {
		t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	version, err := client.Discovery().ServerVersion()
	if err != nil {
		t.Fatal(err)
	}
	if version.EmulationMajor != "1" || version.EmulationMinor != "34" {
		t.Errorf("/version: emulation %s.%s, want 1.34", version.EmulationMajor, version.EmulationMinor)
	}
	// The controller manager runs with the same version.
	if err := controlplane.AwaitDefaultAccount(ctx, client, "default"); err != nil {
		t.Fatal(err)
	}
	if err := plane.Err(); err != nil {
		t.Errorf("a component ended: %v", err)
	}
}

func TestControlPlaneRejectsVersionThatItCannotEmulate(t *testing.T) {
	options := controlplane.Options{Dir: t.TempDir(), Kubernetes: "1.20", Binaries: map[string]string{}}
	for _, program := range controlplane.Programs() {
		options.Binaries[program] = "/nonexistent"
	}
	_, err := controlplane.Start(t.Context(), options)
	if err == nil || !strings.Contains(err.Error(), "1.20") || !strings.Contains(err.Error(), "1.34, 1.35") {
		t.Errorf("error %v, want the version and those that can be emulated", err)
	}
}

func TestControlPlaneNamesAPortInUse(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close() //nolint:errcheck // it only held the port
	port := listener.Addr().(*net.TCPAddr).Port
	_, err = controlplane.Start(context.Background(), controlplane.Options{Dir: t.TempDir(), Binaries: binaries(t), Port: port})
	if err == nil || !strings.Contains(err.Error(), fmt.Sprintf("port %d", port)) || !strings.Contains(err.Error(), "choose another one") {
		t.Errorf("got %v; want the port and what to do", err)
	}
}

func TestControlPlaneNamesAMissingBinary(t *testing.T) {
	_, err := controlplane.Start(context.Background(), controlplane.Options{Dir: t.TempDir()})
	if err == nil || !strings.Contains(err.Error(), "no path of etcd") {
		t.Errorf("got %v; want the missing program's name", err)
	}
}
