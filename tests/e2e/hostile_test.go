package e2e

import (
	"context"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"gpufabric.io/tests/docker"
)

// tenantPod is a pod with a share whose program is Python's. Its author sets the variables that would switch limits off, or show more GPUs.
const tenantPod = `
apiVersion: v1
kind: Pod
metadata:
  name: %[1]s
  annotations: {volcano.sh/vgpu-ids-new: "%[3]s", volcano.sh/devices-to-allocate: "%[3]s", volcano.sh/bind-phase: allocating, ` +
	`volcano.sh/vgpu-node: %[2]s}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 1
  containers:
  - name: main
    image: python:3.9-slim
    command: [python, -u, -c, %[4]q]
    resources: {limits: {volcano.sh/vgpu-number: 1, volcano.sh/vgpu-memory: 1024, volcano.sh/vgpu-cores: 30}}
    env:
    - {name: NVIDIA_VISIBLE_DEVICES, value: all}
    - {name: CUDA_DEVICE_MEMORY_LIMIT_0, value: "0"}
    - {name: CUDA_DISABLE_CONTROL, value: "true"}
---`

// seat is where a container has its page for a GPU, and those of all containers with their order (drivers/gpu/limiter/library/seats.h).
const seat = `
import os, struct, subprocess, time
gpu = os.environ["NVIDIA_VISIBLE_DEVICES"]
own, all = "/usr/local/vgpu/cores.own/" + gpu, "/usr/local/vgpu/cores/" + gpu
`

// honest reads its percentage in the order, and writes into its page, whenever there is a file /tmp/ask.
const honest = seat + `
while True:
    while not os.path.exists("/tmp/ask"):
        time.sleep(0.1)
    os.remove("/tmp/ask")
    with open(own, "r+b") as page:
        head = page.read(24)
        page.seek(64)
        page.write(struct.pack("=q", time.monotonic_ns() + 10**8))
    with open(all + "/order", "rb") as file:
        order = file.read()
    names = [order[64 + 24 * i:][:16] for i in range(struct.unpack_from("=I", order, 32)[0])]
    i = names.index(head[8:])
    print("has a seat of", struct.unpack_from("=I", order, 80 + 24 * i)[0])
`

// hostile tries what root in a container can try, prints what became of it, and keeps its connections.
const hostile = seat + `
def attempt(name, command):
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True)
    print("attempt", name + ":", "DONE" if done.returncode == 0 else "refused:", " ".join(done.stderr.split()))
attempt("limits-written", "echo x >/usr/local/vgpu/limits")
attempt("limits-removed", "rm -f /usr/local/vgpu/limits")
attempt("limits-unmounted", "umount /usr/local/vgpu/limits")
attempt("limits-covered", "mount -t tmpfs none /usr/local/vgpu")
attempt("library-written", "echo x >/usr/local/vgpu/libvgpu.so")
attempt("preload-written", "echo >/etc/ld.so.preload")
attempt("order-written", "echo x >%s/order" % all)
attempt("others-written", "for f in %s/[0-9a-e]*; do echo x >$f || exit 1; done" % all)
attempt("seat-removed", "rm -f " + own)
for minor in range(8):
    if not os.path.exists("/dev/nvidia%d" % minor):
        os.mknod("/tmp/gpu%d" % minor, 0o20666, os.makedev(195, minor))
        attempt("gpu-%d-opened" % minor, "exec 3<>/tmp/gpu%d" % minor)
os.symlink("/etc/shadow", "/tmp/vgpu/cudevshr.cache")
for i in range(200):
    os.symlink("/etc", "/tmp/vgpu/%d" % i)
os.mkfifo("/tmp/vgpulock/lock")
for i in range(1000):
    with open(own, "wb") as page:
        page.write(os.urandom(4096))
print("all tried", i)
time.sleep(1e6)
`

// attempts are the lines of hostile.
var attempts = regexp.MustCompile(`(?m)^attempt (\S+): (.*)$`)

// testHostileContainer has a container whose root wants more than its share, beside another tenant's on the same GPU.
func testHostileContainer(t *testing.T, e *environment) {
	node := e.Workers()[0]
	e.configure(t, "nvidia: {deviceSplitCount: 10, gpuMemoryFactor: 10}", `{"nodeconfig": []}`)
	uuids := e.registered(t, node, ",10,4606,NVIDIA-L40S,true,hami-core:")
	e.counted(t, node)
	share := uuids[6] + ",NVIDIA,1024,30:;"

	e.kubectl(t, "create", "serviceaccount", "tenant")
	t.Cleanup(func() { e.kubectlCleanup(t, "delete", "serviceaccount", "tenant") })
	e.kubectl(t, "create", "rolebinding", "tenant", "--clusterrole=edit", "--serviceaccount=default:tenant")
	t.Cleanup(func() { e.kubectlCleanup(t, "delete", "rolebinding", "tenant") })
	const tenant = "--as=system:serviceaccount:default:tenant"
	forged := fmt.Sprintf(tenantPod, "forged", node, share, "pass")
	out, err := e.Kubectl(t.Context(), strings.NewReader(forged), "apply", tenant, "--filename", "-")
	if err == nil || !strings.Contains(err.Error(), "volcano.sh/") {
		t.Errorf("a tenant makes a pod with a share of its own choice: %s (error: %v)", out, err)
	}

	e.apply(t, fmt.Sprintf(tenantPod, "honest", node, share, honest))
	e.kubectl(t, "wait", "pod/honest", "--for=condition=Ready", inTime)
	e.seated(t, "honest", 1)
	e.apply(t, fmt.Sprintf(tenantPod, "hostile", node, share, hostile))
	e.kubectl(t, "wait", "pod/hostile", "--for=condition=Ready", inTime)
	limits := e.limitsOf(t, node, "hostile")
	e.says(t, "hostile", regexp.MustCompile(`(?m)^all tried \d+$`))
	if t.Failed() {
		return
	}
	log := e.kubectl(t, "logs", "hostile")
	found := attempts.FindAllStringSubmatch(log, -1)
	// Nine, and one for each of the other seven GPUs. Where the plugin is privileged, which it is not on fake hardware, a container cannot
	// enlarge its page either (drivers/gpu/cores).
	if len(found) != 16 {
		t.Errorf("%d attempts, want 16:\n%s", len(found), log)
	}
	for _, attempt := range found {
		opened := strings.HasPrefix(attempt[1], "gpu-")
		// A device without a driver answers ENXIO to whom the device cgroup lets open it.
		if !strings.HasPrefix(attempt[2], "refused") || opened && !strings.Contains(attempt[2], "Operation not permitted") {
			t.Errorf("%s: %s", attempt[1], attempt[2])
		}
	}
	if now := e.limitsOf(t, node, "hostile"); now != limits || !strings.Contains(limits, fmt.Sprintf("%s %d 30", uuids[6], 10240<<20)) {
		t.Errorf("the limits on the node were %q and are %q", limits, now)
	}
	out, err = e.Kubectl(t.Context(), nil, "annotate", tenant, "--overwrite", "pod", "hostile",
		"volcano.sh/vgpu-ids-new="+uuids[5]+",NVIDIA,4606,100:;")
	if err == nil || !strings.Contains(err.Error(), "volcano.sh/") {
		t.Errorf("a tenant changes the share of a running pod: %s (error: %v)", out, err)
	}
	out = e.kubectl(t, "exec", "hostile", "--", "sh", "-c",
		"tr '\\0' '\\n' </proc/1/environ; echo GPUs: $(ls /dev | grep -cE '^nvidia[0-9]+$')")
	if !has(out, "NVIDIA_VISIBLE_DEVICES="+uuids[6]+"\n", "CUDA_DEVICE_MEMORY_LIMIT_0=10240m\n", "GPUs: 1") {
		t.Errorf("the container's own variables decide what it has:\n%s", out)
	}

	// Another tenant's workload continues.
	e.seated(t, "honest", 2)
	monitor := e.pluginOf(t, "vgpu-monitor", node)
	series := fmt.Sprintf(`vGPU_device_memory_limit_in_bytes{ctrname="main",deviceuuid="%s",podname="honest"`, uuids[6])
	e.eventually(t, "the monitor to show the honest pod and no file of the node", func(ctx context.Context) (bool, string, error) {
		out, err := e.scrape(ctx, monitor, 9394)
		return strings.Contains(out, series) && !strings.Contains(out, "root:"), out, err
	})
	e.kubectl(t, "delete", "pod", "hostile", "honest", inTime)
	e.eventually(t, "the containers' directories to go", func(ctx context.Context) (bool, string, error) {
		out, err := docker.Script(ctx, node, "cd /var/lib/gpufabric/vgpu-plugin && ls -A containers limits && test -s /etc/shadow")
		return err == nil && strings.Join(strings.Fields(out), " ") == "containers: limits:", out, err
	})
	testRolesRun(t, e)
}

// seated has the honest pod look for its seat on its GPU, and waits until it has found it this many times.
func (e *environment) seated(t *testing.T, pod string, count int) {
	t.Helper()
	e.kubectl(t, "exec", pod, "--", "touch", "/tmp/ask")
	e.eventually(t, fmt.Sprintf("%s to have found its seat %d times", pod, count), func(ctx context.Context) (bool, string, error) {
		log, err := e.Kubectl(ctx, nil, "logs", pod)
		return strings.Count(log, "has a seat of 30") == count, log, err
	})
}

// limitsOf is the file with a pod's limits on its node.
func (e *environment) limitsOf(t *testing.T, node, pod string) string {
	t.Helper()
	uid := e.kubectl(t, "get", "pod", pod, "--output", "jsonpath={.metadata.uid}")
	out, err := docker.Script(t.Context(), node, "cat /var/lib/gpufabric/vgpu-plugin/limits/"+uid+"_main")
	must(t, err)
	return out
}
