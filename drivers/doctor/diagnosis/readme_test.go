package diagnosis_test

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"

	"gpufabric.io/drivers/doctor"
	"gpufabric.io/drivers/node/host"
	"gpufabric.io/drivers/program/cluster"
)

// TestREADMEShowsTheDoctorsOutput runs the README's command on a real API server: two of three nodes are cordoned, the GPUs of the
// third are held, and a pod waits. With GPUFABRIC_UPDATE=1 it writes the answer into README.md.
func TestREADMEShowsTheDoctorsOutput(t *testing.T) {
	g := newGround(t)
	for _, n := range []string{"n0", "n1"} {
		change(g, "", n, func(n *corev1.Node) { n.Spec.Unschedulable = true })
	}
	takeAll(g, "n2")
	g.put(claim("worker-gpu", "gpu.nvidia.com", 1), pod("worker-0", "", "worker-gpu"))

	const command = "kubectl gpufabric doctor pod --namespace tenant worker-0"
	var out bytes.Buffer
	h := host.Host{Called: "kubectl-gpufabric", Stdout: &out, Stderr: &out,
		RESTConfig: func() (*rest.Config, error) { return g.config, nil }}
	args := slices.Concat(strings.Fields(command)[2:], []string{"--request-timeout=1m", "--timeout=5m"}) // a busy machine
	var status *doctor.StatusError
	if err := cluster.Program().Run(t.Context(), h, args...); !errors.As(err, &status) || status.Status != 13 {
		t.Fatalf("%v\n%s", err, out.String())
	}

	path := filepath.Join("..", "..", "..", "README.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	before, rest, found := strings.Cut(string(page), command+"\n```\n\n```text\n")
	_, after, closed := strings.Cut(rest, "```\n")
	if !found || !closed {
		t.Fatalf("%s has no block of %q with its answer behind it", path, command)
	}
	want := before + command + "\n```\n\n```text\n" + out.String() + "```\n" + after
	if want == string(page) {
		return
	}
	if os.Getenv("GPUFABRIC_UPDATE") == "" {
		t.Fatalf("%s has another answer: run GPUFABRIC_UPDATE=1 go test ./doctor/diagnosis -run %s\n%s", path, t.Name(), out.String())
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}
