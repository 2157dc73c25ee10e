package console

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/drivers/fabric"
	"gpufabric.io/drivers/fabric/reader"
	"gpufabric.io/drivers/node/host"
)

const key = "0123456789abcdef"

// serving serves a page until the test ends, and returns its address.
func serving(t *testing.T, settings Settings) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- Serve(ctx, settings, listener) }()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return "http://" + listener.Addr().String()
}

// local are the settings of a page on one's own machine, before an API server that does not answer.
func local() Settings {
	return Settings{Config: &rest.Config{Host: "https://127.0.0.1:1"}, Key: key, Viewers: 1, Options: reader.Options{Agent: "test"}}
}

func ask(t *testing.T, method, address string, edit func(*http.Request)) (status int, header http.Header, content string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if edit != nil {
		edit(r)
	}
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer answer.Body.Close() //nolint:errcheck // read
	body, err := io.ReadAll(answer.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer.StatusCode, answer.Header, string(body)
}

func TestServerSendsAStrictPolicyWithEveryFile(t *testing.T) {
	address := serving(t, local())
	for file, kind := range map[string]string{"/": "text/html", "/main.js": "text/javascript", "/racks.js": "text/javascript",
		"/details.js": "text/javascript", "/doctor.js": "text/javascript",
		"/keys.js": "text/javascript", "/stream.js": "text/javascript", "/dom.js": "text/javascript",
		"/page.css": "text/css", "/icon.svg": "image/svg+xml"} {
		status, header, body := ask(t, http.MethodGet, address+file, nil)
		policy := header.Get("Content-Security-Policy")
		if status != http.StatusOK || !strings.HasPrefix(header.Get("Content-Type"), kind) ||
			!strings.HasPrefix(policy, "default-src 'none'; script-src 'self'; style-src 'self'") || strings.Contains(policy, "unsafe") {
			t.Errorf("%s: %d %s %s", file, status, header.Get("Content-Type"), policy)
		}
		for _, bad := range []string{"http://", "https://", "innerHTML", "eval(", "<style", " style="} {
			if bad == "http://" && file == "/icon.svg" { // a namespace
				continue
			}
			if strings.Contains(body, bad) {
				t.Errorf("%s has %q: nothing is fetched from elsewhere, and nothing is inline", file, bad)
			}
		}
	}
}

func TestServerAnswersOnlyItsOwnPage(t *testing.T) {
	settings := local()
	settings.Hosts = []string{"fabric.example"}
	address := serving(t, settings)
	stream := address + "/api/stream"
	for _, c := range []struct {
		name, method, address string
		edit                  func(*http.Request)
		want                  int
	}{
		{"the page by its name", http.MethodGet, address, func(r *http.Request) { r.Host = "Fabric.Example:443" }, http.StatusOK},
		{"the page by localhost", http.MethodGet, address, func(r *http.Request) { r.Host = "localhost:1234" }, http.StatusOK},
		{"the page by the loopback of IPv6", http.MethodGet, address, func(r *http.Request) { r.Host = "[::1]:80" }, http.StatusOK},
		{"a name that was bound to this address", http.MethodGet, address, func(r *http.Request) { r.Host = "evil.example" },
			http.StatusMisdirectedRequest},
		{"a name that ends like ours", http.MethodGet, address, func(r *http.Request) { r.Host = "localhost.evil.example" },
			http.StatusMisdirectedRequest},
		{"a probe by the pod's address", http.MethodGet, address + "/healthz", func(r *http.Request) { r.Host = "10.0.0.7:8420" }, http.StatusOK},
		{"a write", http.MethodPost, stream, nil, http.StatusMethodNotAllowed},
		{"another site's script", http.MethodGet, stream, func(r *http.Request) { r.Header.Set("Sec-Fetch-Site", "cross-site") },
			http.StatusForbidden},
		{"a body", http.MethodGet, stream, func(r *http.Request) {
			r.Body, r.ContentLength = io.NopCloser(strings.NewReader("x")), 1
		}, http.StatusRequestEntityTooLarge},
		{"no key", http.MethodGet, stream, nil, http.StatusUnauthorized},
		{"a wrong key", http.MethodGet, stream, func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+key+"0") },
			http.StatusUnauthorized},
		{"the key by Basic", http.MethodGet, stream, func(r *http.Request) { r.SetBasicAuth("a", key) }, http.StatusUnauthorized},
		{"a file that is none", http.MethodGet, address + "/../server.go", nil, http.StatusNotFound},
	} {
		t.Run(c.name, func(t *testing.T) {
			if status, _, body := ask(t, c.method, c.address, c.edit); status != c.want {
				t.Errorf("status %d, want %d: %s", status, c.want, body)
			}
		})
	}
}

// messages reads the stream's events until one satisfies done, and returns the answer's status.
func messages(t *testing.T, address, token string, done func(batch) bool) (status int) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/api/stream", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	answer, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = answer.Body.Close() })
	if answer.StatusCode != http.StatusOK {
		return answer.StatusCode
	}
	lines := bufio.NewScanner(answer.Body)
	lines.Buffer(nil, 4<<20)
	for lines.Scan() {
		data, ok := strings.CutPrefix(lines.Text(), "data: ")
		if !ok {
			continue
		}
		var b batch
		if err := json.Unmarshal([]byte(data), &b); err != nil {
			t.Fatal(err)
		}
		if done(b) {
			return answer.StatusCode
		}
	}
	t.Fatalf("the stream ended: %v", lines.Err())
	return 0
}

func TestServerShowsObjectsThatTokenMayRead(t *testing.T) {
	server := apiserver.Start(t)
	settings := Settings{Config: &rest.Config{Host: server.URL, TLSClientConfig: rest.TLSClientConfig{CAData: server.CA},
		// Credentials of the server itself, which no viewer may borrow.
		BearerToken: apiserver.AdminToken}, Viewers: 1, Options: reader.Options{Agent: "test"}}
	address := serving(t, settings)
	for _, token := range []string{"wrong", ""} {
		status, _, body := ask(t, http.MethodGet, address+"/api/stream", func(r *http.Request) { r.Header.Set("Authorization", "Bearer "+token) })
		if status != http.StatusUnauthorized || !strings.Contains(body, `"wants":"token"`) {
			t.Errorf("token %q: %d %s", token, status, body)
		}
	}
	settled := func(b batch) bool { return strings.Contains(string(b.Parts["about"]), `"settled":true`) }
	missing := ""
	messages(t, address, apiserver.ViewerToken, func(b batch) bool {
		if part := string(b.Parts["missing"]); part != "" {
			missing = part
		}
		return strings.Contains(missing, "rdmapools") && strings.Contains(missing, `User \"viewer\" cannot list resource \"nodes\"`)
	})
	if status := messages(t, address, apiserver.AdminToken, settled); status != http.StatusServiceUnavailable {
		t.Errorf("a second viewer: status %d, want 503", status)
	}
}

func TestServerSendsChangesToAReturningPage(t *testing.T) {
	picture := func(gpus ...string) *fabric.Picture {
		p := &fabric.Picture{Racks: []fabric.Rack{{ID: "r"}}}
		for i, state := range gpus {
			p.Racks[0].Nodes = append(p.Racks[0].Nodes, fabric.NodeState{Name: fmt.Sprintf("n%d", i),
				GPUs: []fabric.GPUState{{Name: "gpu-0", State: fabric.State(state)}}})
		}
		return p
	}
	var p parts
	for i, step := range []struct {
		picture *fabric.Picture
		changed bool
	}{{picture("free", "free"), true}, {picture("free", "free"), false}, {picture("held", "free"), true}, {picture("held"), true}} {
		if changed, err := p.update(step.picture, nil); err != nil || changed != step.changed {
			t.Fatalf("step %d: changed %t, %v", i, changed, err)
		}
	}
	names := func(seen uint64) (out []string) {
		for _, b := range p.since(seen) {
			for name := range b.Parts {
				if strings.HasPrefix(name, "node/") {
					out = append(out, name)
				}
			}
			for _, name := range b.Gone {
				out = append(out, "-"+name)
			}
		}
		return out
	}
	for seen, want := range map[uint64]string{0: "node/n0", 1: "node/n0 -node/n1", 2: "-node/n1", 3: ""} {
		if got := strings.Join(names(seen), " "); got != want {
			t.Errorf("since %d: %q, want %q", seen, got, want)
		}
	}
	if p.forget(2); len(p.gone) != 1 {
		t.Error("a removal is forgotten that a page has not seen")
	}
	if p.forget(3); len(p.gone) != 0 {
		t.Error("a removal is kept that every page has seen")
	}
}

func TestServerBoundsTheSizeOfMessages(t *testing.T) {
	p := &fabric.Picture{Racks: []fabric.Rack{{ID: "r"}}}
	for i := range 2000 {
		p.Racks[0].Nodes = append(p.Racks[0].Nodes, fabric.NodeState{Name: fmt.Sprintf("n%d", i), Notes: []string{strings.Repeat("x", 300)}})
	}
	var all parts
	if _, err := all.update(p, nil); err != nil {
		t.Fatal(err)
	}
	sent := all.since(0)
	nodes := 0
	for i, b := range sent {
		content, err := json.Marshal(b)
		if err != nil || len(content) > 2*batchSize || b.More != (i < len(sent)-1) {
			t.Errorf("message %d of %d has %d bytes, more %t: %v", i, len(sent), len(content), b.More, err)
		}
		for name := range b.Parts {
			if strings.HasPrefix(name, "node/") {
				nodes++
			}
		}
	}
	if nodes != 2000 || sent[0].Parts["rack//r"] == nil {
		t.Errorf("%d nodes, the rack first: %t", nodes, sent[0].Parts["rack//r"] != nil)
	}
}

func TestCommandNamesAWrongFlag(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--address=0.0.0.0:80"}, "served to this machine only"},
		{[]string{"--address=8420"}, "want HOST:PORT"},
		{[]string{"--viewers=0"}, "want 1 to 1000"},
		{[]string{"--api-server=https://a"}, "need --viewer-tokens"},
		{[]string{"--viewer-tokens", "--kubeconfig=x"}, "only one of them"},
		{[]string{"--viewer-tokens"}, "does not run in a pod"},
		{[]string{"--viewer-tokens", "--api-server=https://a", "--api-server-ca=/is/not/there"}, "--api-server-ca"},
	} {
		command := Command(host.Host{Getenv: func(string) string { return "" }})
		command.SetArgs(c.args)
		command.SilenceErrors, command.SilenceUsage = true, true
		if err := command.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%q: %v, want %q", c.args, err, c.want)
		}
	}
}
