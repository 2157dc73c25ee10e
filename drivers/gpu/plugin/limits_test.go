package plugin

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
	"k8s.io/utils/ptr"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/gpu/limiter/account"
	"gpufabric.io/drivers/gpu/limiter/account/accounttest"
	"gpufabric.io/drivers/node/tmpfs"
)

// limited returns the limit files of a container with these edits, by their content.
func limited(b *bench, mounts map[string]string) []string {
	b.Helper()
	var out []string
	for inside, host := range mounts {
		if strings.HasPrefix(inside, "/usr/local/vgpu/limits.d/") {
			content, err := os.ReadFile(host)
			if err != nil {
				b.Fatal(err)
			}
			out = append(out, string(content))
		}
	}
	slices.Sort(out)
	return out
}

func TestContainersOfAShareGetTheLibraryAndTheirLimitByUUID(t *testing.T) {
	program, err := exec.LookPath("true") // any ELF file will do
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, gputest.New(t, 2), func(o *Options) { o.Limits, o.LimiterLibrary = limitsAuto, program })
	c := b.claim("u1", nil,
		device{name: "gpu-1-shared", share: "s1", request: "a", capacity: map[string]string{"memory": "10Gi", "cores": "30"}},
		device{name: "gpu-0-shared", share: "s2", request: "b", capacity: map[string]string{"memory": "512Mi", "cores": "50"}},
	)
	ids := b.mustPrepare(c)
	mounts := map[string]string{}
	for _, m := range b.edits(c, ids...).Mounts {
		mounts[m.ContainerPath] = m.HostPath
		library := m.HostPath == filepath.Join(b.options.StateDir, "lib/libvgpu.so")
		if m.ContainerPath == "/usr/local/vgpu/own" && m.Type != "tmpfs" || m.ContainerPath == "/tmp/vgpu" ||
			library && !slices.Contains(m.Options, "ro") {
			t.Errorf("%+v", m)
		}
	}
	uuid := func(index int) string { return b.machine.GPUs[index].UUID }
	want := []string{"gpufabric-limits 1\n" + uuid(0) + " 536870912 50\n", "gpufabric-limits 1\n" + uuid(1) + " 10737418240 30\n"}
	if got := limited(b, mounts); !slices.Equal(got, want) {
		t.Errorf("limits %q, want %q", got, want)
	}
	for inside, host := range map[string]string{"/etc/ld.so.preload": "lib/ld.so.preload", "/usr/local/vgpu/libvgpu.so": "lib/libvgpu.so"} {
		if mounts[inside] != filepath.Join(b.options.StateDir, host) {
			t.Errorf("%s is %s", inside, mounts[inside])
		}
	}
	// The files of a claim that is gone are removed at the next start; those of present claims stay.
	stale := filepath.Join(b.options.StateDir, "limits", "gone_0")
	if err := os.WriteFile(stale, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	b.stop()
	b.start()
	if _, err := os.Stat(stale); !os.IsNotExist(err) {
		t.Errorf("the limits of a claim that is gone are there still (%v)", err)
	}
	if got := limited(b, mounts); !slices.Equal(got, want) {
		t.Errorf("after a restart the limits are %q, want %q", got, want)
	}
	if problem := b.unprepare(c); problem != "" {
		t.Fatal(problem)
	}
	if left, err := os.ReadDir(filepath.Join(b.options.StateDir, "limits")); err != nil || len(left) != 0 {
		t.Errorf("%v are left (%v)", left, err)
	}
	for inside := range mounts {
		if strings.HasPrefix(inside, "/usr/local/vgpu/accounts.d") {
			t.Errorf("without a bound a container may write to %s", inside)
		}
	}
}

// newCountingBench is a bench with a GPU whose shares count in file systems of their own.
func newCountingBench(t *testing.T) *bench {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("skipped: mounts file systems, which is for root alone")
	}
	program, err := exec.LookPath("true") // any ELF file will do
	if err != nil {
		t.Fatal(err)
	}
	return newBench(t, gputest.New(t, 1), func(o *Options) {
		o.Limits, o.LimiterLibrary, o.LimiterBytes = limitsLibrary, program, 8<<20
	})
}

// A share's directory is in a file system of its own. It is mounted again after a boot of the node, when its claim is prepared still.
func TestShareHasItsOwnFileSystemAfterBoot(t *testing.T) {
	b := newCountingBench(t)
	c := b.claim("u1", nil, device{name: "gpu-0-shared", share: "s1", capacity: map[string]string{"memory": "10Gi", "cores": "30"}})
	directory, mounted := filepath.Join(b.options.StateDir, "accounts", "u1_0"), ""
	for _, m := range b.edits(c, b.mustPrepare(c)...).Mounts {
		if m.ContainerPath == "/usr/local/vgpu/accounts.d/"+b.machine.GPUs[0].UUID && slices.Contains(m.Options, "rw") {
			mounted = m.HostPath
		}
	}
	file := filepath.Join(directory, "account")
	if info, err := os.Stat(file); mounted != file || err != nil || info.Mode() != 0o666 {
		t.Errorf("the share counts in %q, want %q: %v (%v)", mounted, file, info, err)
	}
	t.Cleanup(func() { _ = tmpfs.Remove(directory) }) // only where the test failed
	size := func() uint64 {
		var fs unix.Statfs_t
		if err := unix.Statfs(directory, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
			return 0
		}
		return fs.Blocks * uint64(fs.Bsize) //nolint:gosec // positive
	}
	if size() != 512<<10 {
		t.Errorf("the share's file system has room for %d bytes, want 512 KiB", size())
	}
	accounttest.Count(t, file, b.machine.GPUs[0].UUID, 7)
	b.stop()
	b.start()
	if counted, err := account.Read(file); err != nil || !counted.Opened {
		t.Errorf("what the share has counted is gone with the plugin: %+v, %v", counted, err)
	}
	b.stop()
	if err := tmpfs.Release(directory); err != nil { // as a boot does
		t.Fatal(err)
	}
	b.start()
	if counted, err := account.Read(file); size() != 512<<10 || err != nil || counted.Opened {
		t.Errorf("after a boot the share's file system has room for %d bytes, want 512 KiB; the account is %+v (%v)", size(), counted, err)
	}
	if problem := b.unprepare(c); problem != "" {
		t.Fatal(problem)
	}
	if _, err := os.Stat(directory); !os.IsNotExist(err) {
		t.Errorf("the directory of a claim that is gone is there still (%v)", err)
	}
}

// counts are the values of a metric of the role, by its labels.
func (b *bench) counts(metric string) map[string]float64 {
	b.Helper()
	families, err := b.running().metrics.Registry.Gather()
	if err != nil {
		b.Fatal(err)
	}
	out := map[string]float64{}
	for _, family := range families {
		if family.GetName() != metric {
			continue
		}
		for _, m := range family.Metric {
			var labels []string
			for _, label := range m.Label {
				labels = append(labels, label.GetName()+"="+label.GetValue())
			}
			out[strings.Join(labels, " ")] = m.Gauge.GetValue() + m.Counter.GetValue()
		}
	}
	return out
}

func TestMetricsReportUseOfShares(t *testing.T) {
	b := newCountingBench(t)
	c := b.claim("u1", nil, device{name: "gpu-0-shared", share: "s1", capacity: map[string]string{"memory": "10Gi", "cores": "30"}})
	b.mustPrepare(c)
	directory := filepath.Join(b.options.StateDir, "accounts", "u1_0")
	t.Cleanup(func() { _ = tmpfs.Remove(directory) }) // only where the test failed
	series := fmt.Sprintf("claim=%s claim_namespace=%s claim_uid=%s share=0 uuid=%s", c.Name, c.Namespace, c.UID, b.machine.GPUs[0].UUID)
	agree := func(when string, used map[string]float64, unreadable float64) {
		t.Helper()
		for metric, want := range map[string]map[string]float64{
			"gpufabric_gpu_limited_shares":           {"by=library": 1},
			"gpufabric_gpu_share_memory_limit_bytes": {series: 10 << 30},
			"gpufabric_gpu_share_memory_used_bytes":  used,
			"gpufabric_gpu_share_seconds_total":      {series: 0},
			"gpufabric_gpu_share_regions_unreadable": {"": unreadable},
		} {
			if got := b.counts(metric); !maps.Equal(got, want) {
				t.Errorf("%s: %s is %v, want %v", when, metric, got, want)
			}
		}
	}
	agree("before a container calls CUDA", map[string]float64{series: 0}, 0)
	file := filepath.Join(directory, "account")
	accounttest.Count(t, file, b.machine.GPUs[0].UUID, 3<<30)
	agree("with a process", map[string]float64{series: 3 << 30}, 0)
	b.stop()
	b.start()
	agree("after a restart", map[string]float64{series: 3 << 30}, 0)

	for what, put := range map[string]func() error{
		"another GPU": func() error { accounttest.Count(t, file, "GPU-0", 1); return nil },
		"no account":  func() error { return os.WriteFile(file, []byte("forged"), 0o600) },
		"a short one": func() error { return os.Truncate(file, 1000) },
	} {
		if err := put(); err != nil {
			t.Fatal(err)
		}
		agree(what, map[string]float64{}, 1)
	}
	if problem := b.unprepare(c); problem != "" {
		t.Fatal(problem)
	}
	if got := b.counts("gpufabric_gpu_share_memory_limit_bytes"); len(got) != 0 {
		t.Errorf("a claim that is gone has %v", got)
	}
}

// A version before the accounts removed the limits of claims that ended while it ran, and left their directories.
func TestStartRemovesShareDirectoryOfEarlierVersion(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: mounts file systems, which is for root alone")
	}
	b := newBench(t, gputest.New(t, 1))
	b.stop()
	left := filepath.Join(b.options.StateDir, "accounts", "gone_0")
	if err := tmpfs.Make(left, 0o777, tmpfs.Bounds{Bytes: 1 << 20, Files: 4}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = tmpfs.Remove(left) }) // only where the test failed
	b.start()
	if _, err := os.Stat(left); !os.IsNotExist(err) {
		t.Errorf("the directory of a claim that is gone is there still (%v)", err)
	}
}

// After a boot with --limits=none a claim's containers start without the library: nothing says then that it limits them.
func TestMetricsCountShareWithoutLibraryAsUnlimited(t *testing.T) {
	program, err := exec.LookPath("true") // any ELF file will do
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, gputest.New(t, 1), func(o *Options) { o.Limits, o.LimiterLibrary = limitsLibrary, program })
	c := b.claim("u1", nil, device{name: "gpu-0-shared", share: "s1", capacity: map[string]string{"memory": "10Gi"}})
	b.mustPrepare(c)
	if got := b.counts("gpufabric_gpu_limited_shares")["by=library"]; got != 1 {
		t.Errorf("%v shares are limited, want 1", got)
	}
	b.stop()
	b.options.Limits = limitsNone
	b.machine.Boot(t, "the-next-boot")
	b.start()
	b.mustPrepare(c)
	if got := b.counts("gpufabric_gpu_limited_shares")["by=library"]; got != 0 {
		t.Errorf("after a boot without the library %v shares are limited, want 0", got)
	}
}

func TestPrepareReportsLimiterOfShare(t *testing.T) {
	program, err := exec.LookPath("true") // any ELF file will do
	if err != nil {
		t.Fatal(err)
	}
	for limits, want := range map[string]string{
		limitsLibrary: "libvgpu.so holds each of the claim's containers to 10Gi of memory and 30 % of the cores of GPU-",
		limitsNone:    "nothing on this node holds the claim's containers to 10Gi of memory and 30 % of the cores of GPU-",
	} {
		b := newBench(t, gputest.New(t, 1), func(o *Options) { o.Limits, o.LimiterLibrary = limits, program })
		b.mustPrepare(b.claim("u1", nil, device{name: "gpu-0-shared", share: "s1", capacity: map[string]string{"memory": "10Gi", "cores": "30"}}))
		if got := b.event("ResourceClaim", "ShareLimits"); !strings.Contains(got, want) {
			t.Errorf("%s: the Event says %q, want %q", limits, got, want)
		}
		printed := 0
		for _, slice := range b.slices() {
			for _, published := range slice.Spec.Devices {
				by := published.Attributes["limits"].StringValue
				if by != nil {
					printed++
				}
				if shared := ptr.Deref(published.AllowMultipleAllocations, false); shared != (by != nil) || shared && *by != limits {
					t.Errorf("%s: %s says %q of its limits", limits, published.Name, ptr.Deref(by, ""))
				}
			}
		}
		if printed != 1 {
			t.Errorf("%s: %d devices say what holds shares to their limits, want 1", limits, printed)
		}
	}

	b := newBench(t, gputest.New(t, 1), func(o *Options) { o.Limits, o.LimiterLibrary = limitsLibrary, program })
	b.mustPrepare(b.claim("u1", nil,
		device{name: "gpu-0-shared", share: "s1", request: "a", capacity: map[string]string{"memory": "10Gi"}},
		device{name: "gpu-0-shared", share: "s2", request: "b", capacity: map[string]string{"memory": "5Gi"}}))
	if got := b.event("ResourceClaim", "ShareLimits"); !strings.Contains(got, "the claim has 2 shares of that GPU") {
		t.Errorf("the Event says %q of two shares of a GPU", got)
	}
}

func TestContainersOfAShareGetASeatOnItsGPU(t *testing.T) {
	program, err := exec.LookPath("true") // any ELF file will do
	if err != nil {
		t.Fatal(err)
	}
	b := newBench(t, gputest.New(t, 2), func(o *Options) {
		o.Limits, o.LimiterLibrary, o.LimiterBytes = limitsLibrary, program, limiter.LeastBytes
	})
	c := b.claim("u1", nil, device{name: "gpu-1-shared", share: "s1", capacity: map[string]string{"memory": "10Gi", "cores": "30"}})
	uuid, page := b.machine.GPUs[1].UUID, ""
	for _, m := range b.edits(c, b.mustPrepare(c)...).Mounts {
		if m.ContainerPath == "/usr/local/vgpu/cores.own/"+uuid && slices.Contains(m.Options, "rw") {
			page = m.HostPath
		}
	}
	for _, when := range []string{"at first", "after a restart"} {
		if info, err := os.Stat(page); err != nil || info.Size() != 4096 {
			t.Errorf("%s the claim has no page %q (%v)", when, page, err)
		}
		b.stop()
		b.start()
	}
	if problem := b.unprepare(c); problem != "" {
		t.Fatal(problem)
	}
	if _, err := os.Stat(page); !os.IsNotExist(err) {
		t.Errorf("the page of a claim that is gone is there still (%v)", err)
	}
}

func TestShareLimitsAreOnlyEnvironmentWithoutALibrary(t *testing.T) {
	for _, wish := range []string{limitsNone, limitsAuto} {
		b := newBench(t, gputest.New(t, 1), func(o *Options) { o.Limits, o.LimiterLibrary = wish, filepath.Join(t.TempDir(), "missing") })
		c := b.claim("u1", nil, device{name: "gpu-0-shared", share: "s1", capacity: map[string]string{"memory": "10Gi", "cores": "30"}})
		for _, m := range b.edits(c, b.mustPrepare(c)...).Mounts {
			if strings.Contains(m.ContainerPath, "vgpu") || strings.Contains(m.ContainerPath, "preload") {
				t.Errorf("%s: %+v", wish, m)
			}
		}
	}
}
