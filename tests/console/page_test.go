package console

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/page"
	cdpruntime "github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/drivers/fabric/console"
	"gpufabric.io/drivers/fabric/reader"
	"gpufabric.io/drivers/fabric/topology"
	"gpufabric.io/drivers/node/host"
)

// browser finds Chromium. The test is skipped where there is none.
func browser(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	t.Skip("skipped: the page is tested in a real browser, and no Chromium is on the PATH (Debian: apt-get install chromium)")
	return ""
}

// patience bounds each wait: a loaded machine may be slow.
const patience = 3 * time.Minute

const testKey = "0123456789abcdef0123456789abcdef"

// serve runs the console for a cluster and returns its address.
func serve(t *testing.T, config *rest.Config, key string) string {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- console.Serve(ctx, console.Settings{Config: config, Key: key, Viewers: 4, Options: reader.Options{Agent: "test"}}, listener)
	}()
	t.Cleanup(func() {
		stop()
		<-ended
	})
	return "http://" + listener.Addr().String() + "/"
}

// view is a page in a browser, with the browser's complaints.
type view struct {
	t   *testing.T
	ctx context.Context //nolint:containedctx // chromedp keeps the browser in it

	mu         sync.Mutex
	complaints []string
}

// open starts a browser on an address.
func open(t *testing.T, program, address string, width, height int64) *view {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.ExecPath(program), chromedp.NoSandbox, chromedp.DisableGPU,
		chromedp.WindowSize(int(width), int(height)), chromedp.WSURLReadTimeout(3*time.Minute))
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(stop)
	ctx, end := chromedp.NewContext(allocator)
	t.Cleanup(end)
	v := &view{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, func(event any) {
		switch e := event.(type) {
		case *log.EventEntryAdded:
			v.complain(fmt.Sprintf("%s: %s", e.Entry.Source, e.Entry.Text))
		case *cdpruntime.EventExceptionThrown:
			v.complain("exception: " + e.ExceptionDetails.Error())
		case *page.EventJavascriptDialogOpening:
			v.complain("a script of an object ran: " + e.Message)
		}
	})
	v.run(log.Enable(), page.Enable(), emulation.SetDeviceMetricsOverride(width, height, 1, false), chromedp.Navigate(address))
	return v
}

func (v *view) complain(what string) {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.complaints = append(v.complaints, what)
}

func (v *view) run(actions ...chromedp.Action) {
	v.t.Helper()
	if err := chromedp.Run(v.ctx, actions...); err != nil {
		v.t.Fatalf("%v; the browser said %q", err, v.said())
	}
}

func (v *view) said() []string {
	v.mu.Lock()
	defer v.mu.Unlock()
	return append([]string(nil), v.complaints...)
}

// await waits until an expression of JavaScript is true.
func (v *view) await(what, expression string) {
	v.t.Helper()
	ctx, cancel := context.WithTimeout(v.ctx, patience)
	defer cancel()
	// chromedp's Poll makes a function from a string, which the page's policy forbids.
	until := "new Promise((done) => { const look = () => (" + expression + ") ? done(true) : setTimeout(look, 50); look(); })"
	wait := func(p *cdpruntime.EvaluateParams) *cdpruntime.EvaluateParams { return p.WithAwaitPromise(true) }
	var done bool
	if err := chromedp.Run(ctx, chromedp.Evaluate(until, &done, wait)); err != nil {
		var body string
		const state = "`focus on ${document.activeElement.outerHTML.slice(0, 300)}; ${document.body.innerText}`"
		_ = chromedp.Run(v.ctx, chromedp.Evaluate(state, &body))
		v.t.Fatalf("%s: %s: %v; the browser said %q, the page %.2000s", what, expression, err, v.said(), body)
	}
}

func (v *view) text(expression string) string {
	v.t.Helper()
	var out string
	v.run(chromedp.Evaluate(expression, &out))
	return out
}

const whole = `/ GPUs?: /.test(document.getElementById('summary').textContent)`

func drawn(nodes int) string {
	return fmt.Sprintf(`%s && document.querySelectorAll('.node .name').length === %d`, whole, nodes)
}

// picture takes a picture for the docs if PICTURES names a directory.
func (v *view) picture(name string) {
	v.t.Helper()
	dir := os.Getenv("PICTURES")
	if dir == "" {
		return
	}
	var content []byte
	v.run(chromedp.CaptureScreenshot(&content))
	if err := os.WriteFile(dir+"/"+name+".png", content, 0o644); err != nil {
		v.t.Fatal(err)
	}
}

// furnish adds to a rack what people want to see: claims of all forms, a domain that forms, pods that wait.
func furnish(t *testing.T, c *cluster) {
	t.Helper()
	ctx := t.Context()
	share := func(memory, cores int64) map[resourceapi.QualifiedName]int64 {
		return map[resourceapi.QualifiedName]int64{"memory": memory * gib, "cores": cores}
	}
	var errs []error
	try := func(err error) { errs = append(errs, err) }
	for i := range 6 {
		pool := nodeName(i)
		try(c.addClaim(ctx, "default", fmt.Sprintf("train-%d-gpus", i), fmt.Sprintf("train-%d", i),
			allocated{"gpu.nvidia.com", pool + "-gpu", "gpu-0", nil}, allocated{"gpu.nvidia.com", pool + "-gpu", "gpu-2", nil},
			allocated{"rdma.gpufabric.io", pool + "-rdma", "pci-0000-03-00-0-1", map[resourceapi.QualifiedName]int64{"slots": 4, "bandwidth": 200}}))
		try(c.addClaim(ctx, "default", fmt.Sprintf("serve-%d-share", i), fmt.Sprintf("serve-%d", i),
			allocated{"gpu.nvidia.com", pool + "-gpu", "gpu-1", share(40, 20)}))
		try(c.addClaim(ctx, "default", fmt.Sprintf("notebook-%d", i), fmt.Sprintf("notebook-%d", i),
			allocated{"gpu.nvidia.com", pool + "-gpu", "gpu-1", share(70, 30)}))
	}
	try(c.addDomain(ctx, 0, 11))
	for i := range 5 {
		try(c.addWaitingPod(ctx, fmt.Sprintf("queued-%d", i), fmt.Sprintf("0/%d nodes are available: %d cannot allocate all claims. "+
			"preemption: 0/%d nodes are available.", c.nodes, c.nodes, c.nodes)))
	}
	for _, err := range errs {
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestPageRendersInABrowser(t *testing.T) {
	program := browser(t)
	c := startCluster(t, nodesPerRack)
	furnish(t, c)
	v := open(t, program, serve(t, c.config, testKey)+"#key="+testKey, 1280, 800)
	v.await("the rack is drawn", drawn(nodesPerRack))

	t.Run("shows states, holds and domains", func(t *testing.T) {
		for expression, want := range map[string]string{
			`document.getElementById('summary').textContent`:                                  "18 nodes, 72 GPUs: ",
			`document.getElementById('viewer').textContent`:                                   "as admin may see it",
			`document.querySelector('[data-node=node-000] [data-key="gpu/gpu-0"]').ariaLabel`: "gpu-0, held, held by default/train-0",
			`document.querySelector('[data-node=node-000] ` +
				`[data-key="gpu/gpu-1"]').ariaLabel`: "gpu-1, partly, held by default/notebook-0, default/serve-0",
			`document.querySelector('[data-node=node-003] [data-key="gpu/gpu-3"]').className`:         "broken",
			`document.querySelector('[data-node=node-005] .port.broken').ariaLabel`:                   "mlx5_2, broken",
			`document.querySelector('[data-node=node-000] .domain').textContent`:                      "default/domain-00 (forming)",
			`document.getElementById('domains').innerText`:                                            "11 of 18",
			`document.getElementById('queue').innerText`:                                              "cannot allocate all claims",
			`document.querySelector('[data-node=node-000] [data-key="gpu/gpu-1"] .hold').style.width`: "37.6344%",
		} {
			if got := v.text(expression); !strings.Contains(got, want) {
				t.Errorf("%s is %q, want %q in it", expression, got, want)
			}
		}
	})
	v.picture("console")
	if dir := os.Getenv("PICTURES"); dir != "" { // what docs/fabric.md shows
		var out strings.Builder
		command := topology.Command(host.Host{Stdout: &out, RESTConfig: func() (*rest.Config, error) { return c.config, nil }})
		command.SetArgs(nil)
		if err := command.ExecuteContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(dir+"/topology.txt", []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}

	t.Run("is moved through by keys", func(t *testing.T) {
		v.run(chromedp.Evaluate(`document.querySelector('#racks [tabindex="0"]').focus()`, nil),
			chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.ArrowRight), chromedp.KeyEvent(kb.ArrowDown))
		if got := v.text(`document.activeElement.closest('.node').dataset.node + ' ' + ` +
			`document.activeElement.dataset.key`); got != "node-001 gpu/gpu-1" {
			t.Errorf("the focus is on %q", got)
		}
		v.run(chromedp.KeyEvent(kb.Enter))
		v.await("details", `!document.getElementById('details').hidden && document.activeElement.id === 'details'`)
		got := v.text(`document.getElementById('details').innerText`)
		if !strings.Contains(got, "gpu-1 of node-001") || !strings.Contains(got, "serve-1-share") {
			t.Errorf("details: %s", got)
		}
		v.picture("console-details")
		v.run(chromedp.KeyEvent(kb.Escape))
		v.await("the details are closed", `document.getElementById('details').hidden && document.activeElement.dataset.key === 'gpu/gpu-1'`)
		v.run(chromedp.KeyEvent("/"), chromedp.KeyEvent("train-4"))
		v.await("the search", `document.querySelectorAll('.node.hit').length === 1 && document.querySelector('.node.hit').dataset.node `+
			`=== 'node-004'`)
		v.run(chromedp.KeyEvent(kb.Enter))
		v.await("the first match", `document.activeElement.closest('.node')?.dataset.node === 'node-004'`)
		v.run(chromedp.Evaluate(`document.getElementById('search').value = ''; document.getElementById('search').dispatchEvent(new `+
			`Event('input'))`, nil))
	})

	t.Run("asks the doctor about a claim and a pod that waits", func(*testing.T) {
		ask := func(about, says string) {
			v.run(chromedp.Evaluate(fmt.Sprintf(`document.querySelector('[data-asks="%s"]').click()`, about), nil))
			v.await("the doctor's answer about "+about, fmt.Sprintf(`document.getElementById('doctor-command').textContent === `+
				`'gpufabric doctor %s' && document.getElementById('doctor-answer').textContent.includes('%s')`, about, says))
		}
		v.run(chromedp.Evaluate(`document.querySelector('[data-node=node-001] [data-key="gpu/gpu-1"]').click()`, nil))
		ask("claim default/serve-1-share", "nothing was found")
		v.run(chromedp.Evaluate(`document.querySelector('#queue details').open = true`, nil))
		ask("pod default/queued-0", "ClaimMissing")
		v.run(chromedp.Evaluate(`document.getElementById('close').click()`, nil))
	})

	t.Run("goes dark", func(t *testing.T) {
		before := v.text(`getComputedStyle(document.body).backgroundColor`)
		v.run(chromedp.Click("#theme"))
		if after := v.text(`getComputedStyle(document.body).backgroundColor`); after == before {
			t.Errorf("the page is %s as before", after)
		}
		v.picture("console-dark")
		v.run(chromedp.Click("#theme"))
	})

	t.Run("is live", func(t *testing.T) {
		if err := c.addDomain(t.Context(), 0, nodesPerRack); err != nil {
			t.Fatal(err)
		}
		v.await("the domain is ready", `document.getElementById('domains').innerText.includes('ready') && `+
			`document.querySelector('[data-node=node-000] .domain').textContent === 'default/domain-00'`)
	})

	if said := v.said(); len(said) > 0 {
		t.Errorf("the browser complained: %q", said)
	}
}

// A tenant, or an attacker who controls a plugin, can write such text into objects that the page shows. It must not become
// markup or a script.
const hostile = `"><img src=x onerror=alert(1)><script>alert(2)</script>' onfocus=alert(3) javascript:alert(4)`

func TestHostileObjectsAreOnlyText(t *testing.T) {
	program := browser(t)
	c := startCluster(t, 1)
	ctx := t.Context()
	evil := gpu(1, 0)
	evil.Attributes["productName"] = text(hostile[:64])
	evil.Taints = nil
	name := nodeName(0)
	slice, err := c.core.ResourceV1().ResourceSlices().Get(ctx, name+"-gpu", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	slice.Spec.Devices = []resourceapi.Device{evil}
	slice.Spec.Pool.Generation = 2
	if _, err := c.core.ResourceV1().ResourceSlices().Update(ctx, slice, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := c.addWaitingPod(ctx, "evil", hostile); err != nil {
		t.Fatal(err)
	}
	node, err := c.core.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionFalse, Reason: "Evil", Message: hostile}}
	if _, err := c.core.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	v := open(t, program, serve(t, c.config, testKey)+"#key="+testKey, 1200, 800)
	v.await("the node is drawn", drawn(1))
	v.await("the queue", `document.getElementById('queue').textContent.includes('<script>')`)
	v.run(chromedp.Evaluate(`document.querySelector('[data-key=name]').click()`, nil))
	v.await("the node's note", `document.getElementById('details').textContent.includes('<script>')`)
	v.run(chromedp.Evaluate(`document.getElementById('doctor-ask').click()`, nil))
	v.await("the doctor's answer", `document.getElementById('doctor-answer').textContent.includes('NodeNotReady') && `+
		`document.getElementById('doctor-answer').textContent.includes('<script>')`)
	v.run(chromedp.Evaluate(`document.querySelector('[data-key="gpu/gpu-0"]').click()`, nil))
	v.await("the GPU's product", `document.getElementById('details').textContent.includes('onerror=alert')`)
	var made int
	v.run(chromedp.Evaluate(`document.querySelectorAll('main img, aside img, body script, [onerror], [onfocus]').length`, &made))
	if said := v.said(); made != 0 || len(said) > 0 {
		t.Errorf("%d elements were made of text, and the browser said %q", made, said)
	}
}

// A page in a cluster requires a token, keeps it only in memory, and shows the objects that the token's owner may read.
func TestPageShowsObjectsThatTokenMayRead(t *testing.T) {
	program := browser(t)
	c := startCluster(t, 1)
	anonymous := &rest.Config{Host: c.config.Host, TLSClientConfig: c.config.TLSClientConfig}
	v := open(t, program, serve(t, anonymous, ""), 1200, 800)
	const asked = `document.getElementById('signin').open && !document.getElementById('signin-token').hidden`
	v.await("the page asks for a token", asked)
	enter := func(token string) {
		v.run(chromedp.Evaluate(`document.getElementById('token').focus()`, nil), chromedp.KeyEvent(token+kb.Enter))
	}
	enter("wrong")
	v.await("a wrong token is refused", asked+` && document.getElementById('signin-why').textContent.includes('rejects this token')`)
	enter(apiserver.ViewerToken)
	v.await("a viewer without rights is told so", `!document.getElementById('signin').open && `+
		`document.getElementById('notes').textContent.includes('User "viewer" cannot list resource "nodes"')`)
	var kept int
	v.run(chromedp.Evaluate(`localStorage.length + sessionStorage.length + document.cookie.length`, &kept))
	if kept != 0 {
		t.Error("the page keeps something beyond its memory")
	}
}

// TestPageOfAThousandNodes measures the page and its server on 1,008 nodes while 56 domains form. It prints figures, and fails only
// where the picture is wrong: `NODES=1008 go test -run TestPageOfAThousandNodes -v .`
func TestPageOfAThousandNodes(t *testing.T) {
	nodes, err := strconv.Atoi(os.Getenv("NODES"))
	if err != nil || nodes < nodesPerRack {
		t.Skip("skipped: it takes minutes and proves no more than a rack does; NODES=1008 runs it")
	}
	program := browser(t)
	c := startCluster(t, nodes)
	racks := nodes / nodesPerRack
	parallel(t, racks, func(i int) error { return c.addDomain(t.Context(), i, 0) })
	address, resident := c.runProgram(t)
	begin := time.Now()
	v := open(t, program, address, 1400, 900)
	opened := time.Since(begin)
	v.await("all is drawn", drawn(nodes))
	t.Logf("%d nodes: the browser started and loaded in %.1f s, all was drawn after %.1f s", nodes, opened.Seconds(),
		time.Since(begin).Seconds())
	begin = time.Now()
	v.run(chromedp.Reload())
	v.await("all is drawn again", drawn(nodes))
	t.Logf("from warm: all was drawn after %.2f s", time.Since(begin).Seconds())
	v.run(chromedp.Evaluate(`window.gaps = []; (() => { let last = performance.now(); const frame = (now) => { window.gaps.push(now - `+
		`last); last = now; `+
		`requestAnimationFrame(frame); }; requestAnimationFrame(frame); })()`, nil))
	begin = time.Now()
	for ready := 3; ready <= nodesPerRack; ready += 3 {
		parallel(t, racks, func(i int) error { return c.addDomain(t.Context(), i, ready) })
	}
	v.await("all domains are ready", fmt.Sprintf(`document.getElementById('summary').textContent.includes('%d domains, 0 not ready')`, racks))
	t.Logf("%d domains formed in %.1f s", racks, time.Since(begin).Seconds())
	t.Logf("frames: %s", v.text(`(() => { const g = window.gaps.slice(1).sort((a, b) => a - b); return `+
		"`${g.length}, median ${g[g.length >> 1].toFixed(0)} ms, 99% under ${g[Math.floor(g.length * 0.99)].toFixed(0)} ms, "+
		"longest ${g[g.length - 1].toFixed(0)} ms`; })()"))
	t.Logf("the server: %s", resident())
	v.picture("console-1008")
}

// runProgram runs the program itself (PROGRAM) with a kubeconfig, so that its memory can be measured. It returns the page's
// address, and a function that returns the resident memory.
func (c *cluster) runProgram(t *testing.T) (address string, resident func() string) {
	t.Helper()
	program := os.Getenv("PROGRAM")
	if program == "" {
		return serve(t, c.config, testKey) + "#key=" + testKey, func() string { return "not measured: PROGRAM names no gpufabric" }
	}
	file := filepath.Join(t.TempDir(), "kubeconfig")
	content := fmt.Sprintf(`{apiVersion: v1, kind: Config, current-context: c, contexts: [{name: c, context: {cluster: c, user: u}}],
clusters: [{name: c, cluster: {server: %q, certificate-authority-data: %q}}], users: [{name: u, user: {token: %q}}]}`, c.config.Host,
		base64.StdEncoding.EncodeToString(c.config.CAData), apiserver.AdminToken)
	if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	command := exec.Command(program, "console", "--address=127.0.0.1:0", "--kubeconfig="+file)
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = command.Process.Signal(os.Interrupt)
		_ = command.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(strings.TrimPrefix(line, "The fabric: ")), func() string {
		status, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", command.Process.Pid))
		if err != nil {
			return err.Error()
		}
		var found []string
		for _, l := range strings.Split(string(status), "\n") {
			if strings.HasPrefix(l, "VmHWM") || strings.HasPrefix(l, "VmRSS") || strings.HasPrefix(l, "RssAnon") {
				found = append(found, strings.Join(strings.Fields(l), " "))
			}
		}
		return strings.Join(found, ", ")
	}
}
