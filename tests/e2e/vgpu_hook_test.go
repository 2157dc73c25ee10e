package e2e

import (
	"context"
	"strings"
	"testing"

	"gpufabric.io/tests/docker"
)

// testWithoutHook lets the plugin's hook miss containerd's limit of two seconds, so that containerd drops it, while a container
// of the pod "deaf" is made again. The container must not run without its share.
func testWithoutHook(t *testing.T, e *environment, node, manifest, uuid string) {
	e.apply(t, manifest)
	e.ready(t, "deaf")
	plugin := func(signal string) {
		t.Helper()
		_, err := docker.Script(context.WithoutCancel(t.Context()), node, "kill -"+signal+" $(pgrep -of 'gpufabric-node vgpu-plugin')")
		must(t, err)
	}
	plugin("STOP")
	stopped := true
	resume := func() {
		if stopped {
			stopped = false
			plugin("CONT")
		}
	}
	t.Cleanup(resume)
	_, err := docker.Script(t.Context(), node, `
		id=$(crictl ps --quiet --label io.kubernetes.pod.name=deaf)
		kill -9 $(crictl inspect --output go-template --template '{{.info.pid}}' $id)`)
	must(t, err)
	e.eventually(t, "the container to fail for want of its share", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "events", "--field-selector", "involvedObject.name=deaf", "--output",
			"jsonpath={.items[*].message}")
		return strings.Contains(out, "NRI-did-not-reach-vgpu-plugin"), out, err
	})
	resume()
	// The condition Ready may still have its earlier value.
	e.eventually(t, "the container to be made again", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "pod", "deaf", "--output",
			"jsonpath={.status.containerStatuses[0].ready}/{.status.containerStatuses[0].restartCount}")
		ready, restarts, _ := strings.Cut(out, "/")
		return ready == "true" && restarts != "0", out, err
	})
	if out := e.kubectl(t, "exec", "deaf", "--", "env"); !has(out, "CUDA_DEVICE_MEMORY_LIMIT_0=10240m", uuid) {
		t.Errorf("the container that was made again has not its share:\n%s", out)
	}
	e.kubectl(t, "delete", "pod/deaf", inTime)
}
