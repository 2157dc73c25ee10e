package e2e

import (
	"context"
	"encoding/json"
	"fmt"
	"os/exec"
	"path/filepath"
	"testing"
)

// testFormOfNobody requests a MIG device where GPUs are offered whole. The scheduler can only report that no node has such a device.
func testFormOfNobody(t *testing.T, e *environment) {
	const pod = "wants-mig"
	e.apply(t, ackPool) // the resource that rdma.extendedResources names here; without a pool the doctor finds that it names nothing
	e.apply(t, holder(pod, e.Workers()[0], migClaim))
	e.eventually(t, "an Event that names the form", func(ctx context.Context) (bool, string, error) {
		out, err := e.Kubectl(ctx, nil, "get", "events", "--field-selector", "involvedObject.kind=Pod,involvedObject.name="+pod, "--output",
			`jsonpath={range .items[*]}{.reason}: {.message}{"\n"}{end}`)
		return has(out, "NoSuchForm: ", "asks for a MIG instance of 1g.10gb"), out, err
	})
	if code, said := e.doctor(t, "pod", pod); code != "NoSuchForm" {
		t.Errorf("gpufabric doctor pod finds %q first, want NoSuchForm:\n%s", code, said)
	}
	e.kubectl(t, "delete", "pod/"+pod, "resourceclaimtemplate/"+pod, inTime)
	e.eventually(t, "gpufabric doctor to find nothing", func(context.Context) (bool, string, error) {
		code, said := e.doctor(t)
		return code == "", said, nil
	})
}

// doctor runs gpufabric doctor with the administrator's rights and returns the code of the first cause; empty: none was found.
func (e *environment) doctor(t *testing.T, args ...string) (code, said string) {
	t.Helper()
	command := exec.CommandContext(t.Context(), filepath.Join(e.root, "bin/gpufabric"),
		append([]string{"doctor", "--kubeconfig", e.Kubeconfig, "--output", "json"}, args...)...)
	out, err := command.Output() // the exit status reports which link of the chain is broken, as the report does
	var report struct {
		First *struct {
			Code string `json:"code"`
		} `json:"first"`
	}
	if unread := json.Unmarshal(out, &report); unread != nil {
		t.Fatalf("%v: %v\n%s\n%s", command.Args, err, out, fmt.Sprint(unread))
	}
	if report.First == nil {
		return "", string(out)
	}
	return report.First.Code, string(out)
}
