package plugin

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/gputest"
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

//shows:gpu-share vgpu-limits
func TestContainersOfAShareGetTheLibraryAndTheirLimitByUUID(t *testing.T) {
	program, err := os.Executable() // any ELF file will do
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
		if m.ContainerPath == "/tmp/vgpu" && m.Type != "tmpfs" || m.HostPath == filepath.Join(b.options.StateDir, "lib/libvgpu.so") &&
			!slices.Contains(m.Options, "ro") {
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
}

func TestWithoutALibraryASharesLimitsAreEnvironmentAlone(t *testing.T) {
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
