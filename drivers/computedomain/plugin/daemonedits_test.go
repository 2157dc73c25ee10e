package plugin

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

func TestDaemonEditsHaveDriverDevicesAndDomain(t *testing.T) {
	n := newTestNode(t, inFabric)
	claim := daemonClaim(system)
	if result := n.prepare(t, claim); result.Err != nil {
		t.Fatal(result.Err)
	}
	dir, private := filepath.Join(n.dir, "state/domains", string(domainUID)), filepath.Join(n.dir, "state/daemons", string(domainUID))
	own := []string{"rw", "nosuid", "nodev", "noexec", "bind"}
	ofDriver := func(host, container string) *specs.Mount {
		return &specs.Mount{HostPath: "/run/nvidia/driver/usr/" + host, ContainerPath: "/driver/" + container,
			Options: []string{"ro", "nosuid", "nodev", "bind"}}
	}
	want := specs.ContainerEdits{
		Env: []string{
			"CLIQUE_ID=" + cliqueID, "COMPUTE_DOMAIN_UUID=" + string(domainUID), "COMPUTE_DOMAIN_NAME=d", "COMPUTE_DOMAIN_NAMESPACE=user",
			"IMEX_PROGRAM=/driver/bin/nvidia-imex", "IMEX_CONTROL=/driver/bin/nvidia-imex-ctl",
		},
		// public PR #1222 of NVIDIA's DRA driver: without access to all the GPUs, the IMEX daemon doesn't work properly.
		DeviceNodes: []*specs.DeviceNode{
			deviceNode("/dev/nvidiactl", 195, 255), deviceNode("/dev/nvidia0", 195, 0), deviceNode("/dev/nvidia1", 195, 1),
			deviceNode("/dev/nvidia-caps/nvidia-cap4", 235, 4),
		},
		Mounts: []*specs.Mount{
			{HostPath: dir, ContainerPath: "/imexd", Options: own},
			{HostPath: filepath.Join(private, "persist"), ContainerPath: "/var/run/nvidia-imex", Options: own},
			{HostPath: filepath.Join(private, "nsswitch.conf"), ContainerPath: "/etc/nsswitch.conf",
				Options: []string{"ro", "nosuid", "nodev", "noexec", "bind"}},
			ofDriver("bin/nvidia-imex", "bin/nvidia-imex"), ofDriver("bin/nvidia-imex-ctl", "bin/nvidia-imex-ctl"),
			ofDriver("lib64/libnvidia-imex.so.1", "lib/libnvidia-imex.so.1"), ofDriver("lib64/libnvidia-ml.so.1", "lib/libnvidia-ml.so.1"),
		},
	}
	if diff := cmp.Diff(want, n.injected(t)); diff != "" {
		t.Errorf("injected (-want +got)\n%s", diff)
	}
	writeFile(t, filepath.Join(dir, "nodes.cfg"), "left by a daemon that was killed")
	n.unprepare(t, claim)
	for _, left := range []string{dir, private} {
		if _, err := os.Stat(left); !os.IsNotExist(err) {
			t.Errorf("the domain's directory is still there: %v", err)
		}
	}
}

func TestDaemonFilesOutliveThePodWhileAJobRuns(t *testing.T) {
	n := newTestNode(t, inFabric)
	n.daemonIs(true)
	job, first, second := channelClaim("user", v1beta1.AllocationModeSingle), daemonClaim(system), daemonClaim(system)
	second.UID, second.Name = "second-daemon", "second-daemon"
	if result := n.prepare(t, first); result.Err != nil {
		t.Fatal(result.Err)
	}
	if result := n.prepare(t, job); result.Err != nil {
		t.Fatal(result.Err)
	}
	kept := filepath.Join(n.dir, "state/daemons", string(domainUID), "persist/persist.dat")
	writeFile(t, kept, "peers that have memory mapped")
	n.unprepare(t, first) // its pod was evicted
	if result := n.prepare(t, second); result.Err != nil {
		t.Fatal(result.Err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("the next daemon does not know whom to wait for: %v", err)
	}
	n.unprepare(t, job)
	n.unprepare(t, second)
	if _, err := os.Stat(filepath.Dir(filepath.Dir(kept))); !os.IsNotExist(err) {
		t.Errorf("nothing of the domain is here any more, and its directory is: %v", err)
	}
}

func TestDaemonDoesNotWaitAfterReboot(t *testing.T) {
	n := newTestNode(t, inFabric)
	if result := n.prepare(t, daemonClaim(system)); result.Err != nil {
		t.Fatal(result.Err)
	}
	kept := filepath.Join(n.dir, "state/daemons", string(domainUID), "persist/persist.dat")
	writeFile(t, kept, "peers that had memory mapped")
	if _, err := n.domainEdits(domainUID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("forgotten in the same boot: %v", err)
	}
	writeFile(t, filepath.Join(n.dir, "proc/sys/kernel/random/boot_id"), "second\n")
	if _, err := n.domainEdits(domainUID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(kept); !os.IsNotExist(err) {
		t.Errorf("kept over a boot, in which the memory went: %v", err)
	}
}

func TestDaemonFilesAreKeptAfterAnUnknownBoot(t *testing.T) {
	n := newTestNode(t, inFabric)
	kept := filepath.Join(n.dir, "state/daemons", string(domainUID), "persist/persist.dat")
	writeFile(t, kept, "peers that have memory mapped")
	n.bootID = func() string { return "" }
	if _, err := n.domainEdits(domainUID); err == nil || !strings.Contains(err.Error(), "boot_id") {
		t.Errorf("got %v, want a refusal that names the file", err)
	}
	if _, err := os.Stat(kept); err != nil {
		t.Errorf("what the daemon kept is gone: %v", err)
	}
}

// A daemon's container writes in its domain's directory. Nothing that is mounted for the next container may lie there: it could be a link
// to anywhere on the node by then.
func TestDomainEditsDoNotMountFilesThatADaemonCanReplace(t *testing.T) {
	n := newTestNode(t, inFabric)
	edits, err := n.domainEdits(domainUID)
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range edits.Mounts {
		if strings.HasPrefix(m.HostPath, n.domainDir(domainUID)+"/") {
			t.Errorf("%s, below the directory that the container has, is mounted on %s", m.HostPath, m.ContainerPath)
		}
	}
	for _, name := range []string{"persist", "boot", "nsswitch.conf"} {
		if err := os.Symlink("/", filepath.Join(n.domainDir(domainUID), name)); err != nil {
			t.Fatal(err)
		}
	}
	again, err := n.domainEdits(domainUID)
	if diff := cmp.Diff(edits, again); err != nil || diff != "" {
		t.Errorf("after the container has put links there: %v\n%s", err, diff)
	}
}

func TestPrepareRefusesADaemonThatCannotRun(t *testing.T) {
	for name, c := range map[string]struct {
		remove string
		says   []string
	}{
		"no driver's files":      {"driver/usr/lib64", []string{"/run/nvidia/driver", cliqueID}},
		"no nvidia-imex":         {"driver/usr/bin/nvidia-imex", []string{"nvidia-imex", "install the package nvidia-imex"}},
		"no management":          {"proc/driver/nvidia/capabilities", []string{"fabric-imex-mgmt"}},
		"the driver is unloaded": {"proc/driver/nvidia/gpus", []string{"no IMEX in the loaded driver", "gpus"}},
	} {
		t.Run(name, func(t *testing.T) {
			n := newTestNode(t, inFabric)
			if err := os.RemoveAll(filepath.Join(n.dir, c.remove)); err != nil {
				t.Fatal(err)
			}
			result := n.prepare(t, daemonClaim(system))
			if result.Err == nil {
				t.Fatal("prepared")
			}
			for _, word := range c.says {
				if !strings.Contains(result.Err.Error(), word) {
					t.Errorf("%q does not say %q", result.Err, word)
				}
			}
		})
	}
}
