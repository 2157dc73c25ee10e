package e2e

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
)

// cuda allocates this many MiB on the container's first GPU by the driver's own library, as programs find it, and prints the driver's
// answer: 0, or 2 where memory is short (CUDA_ERROR_OUT_OF_MEMORY). Then it shows the container's memory of the GPU, in MiB.
const cuda = `
import ctypes, sys, time
cuda = ctypes.CDLL("libcuda.so.1")
def done(answer):
    if answer:
        sys.exit("the driver answers %%d" %% answer)
device, context = ctypes.c_int(), ctypes.c_void_p()
done(cuda.cuInit(0))
done(cuda.cuDeviceGet(ctypes.byref(device), 0))
done(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device))
done(cuda.cuCtxSetCurrent(context))
at = ctypes.c_uint64()
print("allocated:", cuda.cuMemAlloc_v2(ctypes.byref(at), ctypes.c_size_t(%d << 20)), flush=True)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
done(cuda.cuMemGetInfo_v2(ctypes.byref(free), ctypes.byref(total)))
print("total:", total.value >> 20, flush=True)
`

// allocates has a container's program allocate this many MiB, and returns its output.
func (e *environment) allocates(t *testing.T, pod, container string, mib int) string {
	t.Helper()
	return e.kubectl(t, "exec", pod, "--container", container, "--", "python", "-c", fmt.Sprintf(cuda, mib))
}

// sharedByTwo is a pod whose containers have one share of a GPU together. The first keeps 6 GiB of its 10.
const sharedByTwo = `
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: shared-by-two}
spec:
  spec:
    devices:
      requests:
      - name: share
        exactly:
          deviceClassName: gpu-share.gpufabric.io
          selectors: [{cel: {expression: 'device.attributes["gpu.nvidia.com"].limits == "library"'}}]
          capacity: {requests: {memory: 10Gi, cores: "30"}}
---
apiVersion: v1
kind: Pod
metadata: {name: shared-by-two}
spec:
  terminationGracePeriodSeconds: 1
  nodeSelector: {kubernetes.io/hostname: %s}
  containers:
  - name: first
    image: python:3.9-slim
    command: [python, -u, -c, %q]
    resources: {claims: [{name: share}]}
  - name: second
    image: python:3.9-slim
    command: [sleep, infinity]
    resources: {claims: [{name: share}]}
  resourceClaims: [{name: share, resourceClaimTemplateName: shared-by-two}]
---`

// testShareOfTwoContainers has a claim's containers keep to the claim's share together.
func testShareOfTwoContainers(t *testing.T, e *environment) {
	node := e.Workers()[0]
	e.apply(t, fmt.Sprintf(sharedByTwo, node, fmt.Sprintf(cuda, 6<<10)+"time.sleep(1e6)\n"))
	e.ready(t, "shared-by-two")
	e.says(t, "shared-by-two", regexp.MustCompile(`(?m)^total: 10240$`))
	for mib, want := range map[int]string{5 << 10: "allocated: 2", 3 << 10: "allocated: 0"} {
		if out := e.allocates(t, "shared-by-two", "second", mib); !has(out, want, "total: 10240") {
			t.Errorf("%d MiB beside the other container's 6 GiB of 10:\n%s", mib, out)
		}
	}
	events := e.kubectl(t, "get", "events", "--field-selector=reason=ShareLimits", "--output",
		`jsonpath={range .items[*]}{.involvedObject.kind}: {.message}{"\n"}{end}`)
	for _, kind := range []string{"Pod", "ResourceClaim"} {
		if want := kind + ": libvgpu.so holds the claim's containers to 10Gi of memory and 30 % of the cores"; !strings.Contains(events, want) {
			t.Errorf("no Event says %q:\n%s", want, events)
		}
	}
	out, err := e.scrape(t.Context(), e.pluginOf(t, "gpu-plugin", node), 8080)
	if err != nil {
		t.Fatal(err)
	}
	share := `\{claim="shared-by-two-share-\w+",claim_namespace="default",claim_uid="[0-9a-f-]{36}",share="0",uuid="GPU-.*"\}`
	for _, want := range []string{
		`(?m)^gpufabric_gpu_limited_shares\{by="library"\} 1$`,
		`(?m)^gpufabric_gpu_share_memory_limit_bytes` + share + ` 1.073741824e\+10$`,
		`(?m)^gpufabric_gpu_share_memory_used_bytes` + share + ` 6\.\d+e\+09$`, // 6 GiB, and contexts
	} {
		if !regexp.MustCompile(want).MatchString(out) {
			t.Errorf("no metric of the share is %s:\n%s", want, out)
		}
	}
	e.kubectl(t, "delete", "pod/shared-by-two", inTime)
}
