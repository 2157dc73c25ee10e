package e2e

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"strings"
	"testing"

	"gpufabric.io/build/toolchain"
)

// pageMemory is how much of the page's stream a test reads, in bytes. The first picture of two nodes has about 100 kB.
const pageMemory = 8 << 20

// testPage opens the page of the fabric as the chart's README describes, with the token of a user who may read its objects.
func testPage(t *testing.T, e *environment) {
	e.apply(t, e.file(t, "examples/manifests/fabric-viewer.yaml"))
	token := e.kubectl(t, "create", "token", "viewer", "--namespace", "default")
	page := e.forward(t, "gpufabric-system", "service/gpufabric-console", "80")
	if status, _, err := stream(t.Context(), page, "no-token-of-this-cluster", nil); err != nil || status != http.StatusUnauthorized {
		t.Errorf("a token of nobody: status %d, %v; want 401", status, err)
	}
	wanted := []string{`"system:serviceaccount:default:viewer"`, `"gpu-7"`}
	for _, node := range e.Workers() {
		wanted = append(wanted, fmt.Sprintf("%q", "node/"+node))
	}
	e.eventually(t, "the page to show both nodes and their GPUs", func(ctx context.Context) (bool, string, error) {
		status, said, err := stream(ctx, page, token, wanted)
		return err == nil && status == http.StatusOK, said, err
	})
}

// stream reads the page's stream until it has shown all that is wanted.
func stream(ctx context.Context, page, token string, wanted []string) (status int, said string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, page+"/api/stream", nil)
	if err != nil {
		return 0, "", err
	}
	request.Header.Set("Authorization", "Bearer "+token)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close() //nolint:errcheck // read
	var all strings.Builder
	lines := bufio.NewReader(io.LimitReader(response.Body, pageMemory))
	for response.StatusCode == http.StatusOK && !containsAll(all.String(), wanted) {
		line, err := lines.ReadString('\n')
		all.WriteString(line)
		if err != nil {
			return response.StatusCode, all.String(), fmt.Errorf("the stream ended before it had said %q: %w", wanted, err)
		}
	}
	return response.StatusCode, all.String(), nil
}

func containsAll(said string, wanted []string) bool {
	for _, want := range wanted {
		if !strings.Contains(said, want) {
			return false
		}
	}
	return true
}

// forward runs kubectl port-forward until the test ends, and returns the URL by which the port is reached.
func (e *environment) forward(t *testing.T, namespace, target, port string) string {
	t.Helper()
	tools, err := toolchain.Ensure(t.Context(), "kubectl")
	must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	command := exec.CommandContext(ctx, tools["kubectl"], "--kubeconfig", e.Kubeconfig, "--namespace", namespace, "port-forward", target,
		":"+port)
	var complaint strings.Builder
	command.Stderr = &complaint
	out, err := command.StdoutPipe()
	must(t, err)
	must(t, command.Start())
	var rest string
	found := make(chan string, 1)
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		defer close(found)
		lines := bufio.NewScanner(out)
		for lines.Scan() { // to its end, since an unread pipe stops the forwarding
			if after, is := strings.CutPrefix(lines.Text(), "Forwarding from "); is {
				address, _, _ := strings.Cut(after, " ")
				select {
				case found <- address:
				default: // the IPv6 one
				}
			}
			rest = lines.Text()
		}
	}()
	t.Cleanup(func() {
		cancel()
		<-drained
		var exit *exec.ExitError
		if err := command.Wait(); err != nil && !errors.As(err, &exit) {
			t.Errorf("end the forwarding: %v", err)
		}
	})
	address, ok := <-found
	if !ok {
		t.Fatalf("kubectl port-forward of %s said %q and %q", target, rest, complaint.String())
	}
	return "http://" + address
}
