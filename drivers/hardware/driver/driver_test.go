package driver

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// tree makes files (name: content) and links (name: "-> target") below a new directory.
func tree(t *testing.T, entries map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range entries {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		err := error(nil)
		if target, isLink := strings.CutPrefix(content, "-> "); isLink {
			err = os.Symlink(target, path)
		} else {
			err = os.WriteFile(path, []byte(content), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestLibraryIsFoundInDistributionsDirectories(t *testing.T) {
	for name, layout := range map[string]map[string]string{
		"RHEL": {"usr/lib64/libnvidia-ml.so.1": "-> libnvidia-ml.so.580.1.2", "usr/lib64/libnvidia-ml.so.580.1.2": ""},
		"Ubuntu": {"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "-> libnvidia-ml.so.580.1.2",
			"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.1.2": ""},
		"Grace on Ubuntu": {"usr/lib/aarch64-linux-gnu/libnvidia-ml.so.1": "-> libnvidia-ml.so.580.1.2",
			"usr/lib/aarch64-linux-gnu/libnvidia-ml.so.580.1.2": ""},
		"lib before usr": {"lib": "-> usr/lib", "usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "-> libnvidia-ml.so.580.1.2",
			"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.580.1.2": ""},
		"Debian's package": {"usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1": "-> /etc/alternatives/nvidia--libnvidia-ml.so.1",
			"etc/alternatives/nvidia--libnvidia-ml.so.1":                      "-> /usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.580.1.2",
			"usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.580.1.2": ""},
	} {
		root := tree(t, layout)
		got, err := Place{Path: root, Host: "/"}.Library()
		if err != nil || filepath.Base(got) != "libnvidia-ml.so.580.1.2" || !strings.HasPrefix(got, root) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}

func TestRootDoesNotFollowLinksToOutside(t *testing.T) {
	outside := tree(t, map[string]string{"libnvidia-ml.so.1": ""})
	root := tree(t, map[string]string{"usr/lib64/libnvidia-ml.so.1": "-> " + outside + "/libnvidia-ml.so.1",
		"usr/bin/nvidia-smi": "-> nvidia-smi"})
	if got, err := (Place{Path: root, Host: root}).Library(); err == nil {
		t.Errorf("found %s", got)
	}
	if got, err := (Place{Path: root, Host: root}).Program("nvidia-smi"); err == nil {
		t.Errorf("a link to itself is the program %s", got)
	}
}

func TestLocatePrefersDriverOfLoadedModule(t *testing.T) {
	host := tree(t, map[string]string{"usr/lib64/libnvidia-ml.so.1": "-> libnvidia-ml.so.550.1.2", "usr/lib64/libnvidia-ml.so.550.1.2": ""})
	container := tree(t, map[string]string{"usr/lib64/libnvidia-ml.so.1": "-> libnvidia-ml.so.580.95.05",
		"usr/lib64/libnvidia-ml.so.580.95.05": "", "dev/nvidiactl": ""})
	s := Search{Roots: []Place{{host, "/"}, {container, "/run/nvidia/driver"}}, Dev: Place{"/host/dev", "/dev"}, ProcRoot: t.TempDir()}
	if at := s.Locate(); at.Root.Host != "/" || at.Dev.Host != "/dev" {
		t.Errorf("with no word of the kernel: %+v, want the first", at)
	}
	s.ProcRoot = tree(t, map[string]string{"driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.95.05  " +
		"Release Build  (dvs-builder)  Tue\nGCC version: 12.2.0\n"})
	at := s.Locate()
	if at.Root.Host != "/run/nvidia/driver" || at.Dev != (Place{container + "/dev", "/run/nvidia/driver/dev"}) {
		t.Errorf("with 580.95.05 loaded: %+v, want the driver container's and its own device nodes", at)
	}
	if err := os.Remove(filepath.Join(container, "dev/nvidiactl")); err != nil {
		t.Fatal(err)
	}
	if at := s.Locate(); at.Dev.Host != "/dev" {
		t.Errorf("a driver container without device nodes has them in %s, want /dev", at.Dev.Host)
	}
}

func TestLocateNamesFirstPlaceWithoutDriver(t *testing.T) {
	s := Search{Roots: []Place{{"/nowhere", "/"}, {"/nowhere/else", "/run/nvidia/driver"}}, Dev: Place{"/dev", "/dev"}}
	if at := s.Locate(); at.Root.Path != "/nowhere" || at.Library != "" {
		t.Errorf("%+v", at)
	}
}

func TestPlaceIsMappedToTheHostsPath(t *testing.T) {
	places, err := ParsePlaces("/host=/, /run/nvidia/driver")
	if err != nil || len(places) != 2 || places[0] != (Place{"/host", "/"}) ||
		places[1] != (Place{"/run/nvidia/driver", "/run/nvidia/driver"}) {
		t.Fatalf("%+v, %v", places, err)
	}
	for path, want := range map[string]string{"/host/usr/bin/x": "/usr/bin/x", "/host": "/", "/hosts/x": "/hosts/x",
		"/elsewhere": "/elsewhere"} {
		if got := places[0].OnHost(path); got != want {
			t.Errorf("%s is %s on the host, want %s", path, got, want)
		}
	}
	if _, err := ParsePlaces("/host=,run/nvidia"); err == nil || !strings.Contains(err.Error(), `"/host="`) ||
		!strings.Contains(err.Error(), `"run/nvidia"`) {
		t.Errorf("%v names not both mistakes", err)
	}
}

func TestDeviceNodesThatAppearLaterAreMadeInTheContainersDev(t *testing.T) {
	host, own := t.TempDir(), t.TempDir()
	if err := unix.Mknod(filepath.Join(host, "nvidiactl"), unix.S_IFCHR|0o666, int(unix.Mkdev(195, 255))); err != nil {
		t.Skipf("device nodes cannot be made here (%v); run as root outside a user namespace", err)
	}
	for name, major := range map[string]uint32{"nvidia0": 195, "nvidia-caps/nvidia-cap1": 234} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(host, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := unix.Mknod(filepath.Join(host, name), unix.S_IFCHR|0o600, int(unix.Mkdev(major, 1))); err != nil {
			t.Fatal(err)
		}
	}
	// A device node from an earlier load of the driver, and a file that is no node.
	if err := unix.Mknod(filepath.Join(own, "nvidia0"), unix.S_IFCHR|0o666, int(unix.Mkdev(195, 7))); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(host, "nvidia-notes"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	s := Search{OwnDev: own}
	for range 2 { // the second finds all made
		if err := s.Prepare(Location{Dev: Place{host, "/dev"}}); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]uint64{"nvidiactl": unix.Mkdev(195, 255), "nvidia0": unix.Mkdev(195, 1),
		"nvidia-caps/nvidia-cap1": unix.Mkdev(234, 1)} {
		got, mode, isDevice, err := deviceNumber(filepath.Join(own, name))
		if err != nil || !isDevice || got != want {
			t.Errorf("%s: device %v %x (%v), %v, want %x", name, isDevice, got, mode, err, want)
		}
	}
	if _, err := os.Stat(filepath.Join(own, "nvidia-notes")); err == nil {
		t.Error("a plain file was taken for a node")
	}
}
