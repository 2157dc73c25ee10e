package injection

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/drivers/gpu/cores"
	"gpufabric.io/drivers/gpu/limiter/account"
)

func TestBackendIsChosenByTheNode(t *testing.T) {
	old := errors.New("the driver 570.1 has no such call")
	for _, test := range []struct {
		wish, directory string
		native          error
		library         bool
		want            Backend
		wrong           string
	}{
		{"auto", "", nil, true, Native, ""},
		{"auto", "", old, true, Library, ""},
		{"auto", "/opt/hami", nil, true, HAMiCore, ""},
		{"auto", "", old, false, None, ""},
		{"native", "", nil, true, Native, ""},
		{"native", "", old, true, "", "the driver 570.1 has no such call"},
		{"native", "/opt/hami", nil, true, "", "contradict each other"},
		{"library", "", nil, true, Library, ""},
		{"library", "", nil, false, "", "there is no library at --limiter-library"},
		{"library", "/opt/hami", nil, true, "", "contradict each other"},
		{"hami-core", "/opt/hami", nil, true, HAMiCore, ""},
		{"hami-core", "", nil, true, "", "name the directory"},
		{"none", "", nil, true, None, ""},
		{"whole", "", nil, true, "", "native, library, hami-core and none are allowed"},
	} {
		got, err := Choose(test.wish, test.directory, test.native, test.library)
		if got != test.want || test.wrong == "" && err != nil || test.wrong != "" && (err == nil || !strings.Contains(err.Error(), test.wrong)) {
			t.Errorf("Choose(%q, %q, %v, %t) is %q (%v), want %q %q", test.wish, test.directory, test.native, test.library, got, err, test.want,
				test.wrong)
		}
	}
}

// ours is a node whose containers have this project's library.
func ours(t *testing.T) Limiter {
	root := t.TempDir()
	return Limiter{Backend: Library, Directory: "/state/lib", Containers: filepath.Join(root, "containers"),
		Locks: filepath.Join(root, "locks"), Accounts: filepath.Join(root, "accounts")}
}

// mounted returns the host's paths by the container's.
func mounted(t *testing.T, l Limiter, c Container, limits []Limit) map[string]string {
	t.Helper()
	edits, err := l.Edits(c, limits)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	for _, m := range edits.Mounts {
		out[m.ContainerPath] = m.HostPath + " " + m.Options[0]
	}
	return out
}

// Programs clean /tmp. The account is a file that is mounted, which they cannot remove, and another one for each run of the container.
func TestOurLibraryCountsInAFileThatTheContainerCannotReplace(t *testing.T) {
	l, c := ours(t), Container{"uid-1", "main"}
	limits := []Limit{{uuid, 10240, 30}}
	if err := l.Make(c, limits); err != nil {
		t.Fatal(err)
	}
	file, options, _ := strings.Cut(mounted(t, l, c, limits)["/usr/local/vgpu/account"], " ")
	info, err := os.Stat(file)
	if err != nil || options != "rw" || !info.Mode().IsRegular() || info.Mode().Perm() != 0o666 {
		t.Fatalf("the account is %s, %s: %v (%v)", file, options, info, err)
	}
	for _, writable := range []string{l.Containers, l.Locks} {
		if strings.HasPrefix(file, writable+"/") {
			t.Errorf("the account is in %s, where the container can remove it", file)
		}
	}
	if err := os.WriteFile(file, []byte("an earlier run's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Make(c, limits); err != nil {
		t.Fatal(err)
	}
	if counted, err := account.Read(file); err != nil || counted.Opened {
		t.Errorf("a container that is started again finds %+v (%v)", counted, err)
	}
	if err := errors.Join(l.Remove("uid-1"), l.Sweep()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the account of a pod that is gone still exists (%v)", err)
	}
}

func TestOurLibraryComesWithLimitsThatTheContainerCannotWrite(t *testing.T) {
	l, c := ours(t), Container{"uid-1", "main"}
	l.Closed = true
	limits := []Limit{{uuid, 10240, 30}, {other, 0, 0}}
	got := mounted(t, l, c, limits)
	file, options, _ := strings.Cut(got["/usr/local/vgpu/limits"], " ")
	if options != "ro" || got["/usr/local/vgpu/libvgpu.so"] != "/state/lib/libvgpu.so ro" ||
		got["/etc/ld.so.preload"] != "/state/lib/ld.so.preload ro" || got["/overrideEnv"] != "" {
		t.Errorf("mounts %v", got)
	}
	if err := l.Make(c, limits); err != nil {
		t.Fatal(err)
	}
	want := "gpufabric-limits 1\nclosed\n" + uuid + " 10737418240 30\n" + other + " 0 0\n"
	if text, err := os.ReadFile(file); err != nil || string(text) != want {
		t.Errorf("the limits are %q (%v), want %q", text, err, want)
	}
	if strings.HasPrefix(file, l.Containers+"/") {
		t.Errorf("the limits are in %s, where containers can write", file)
	}
	if err := l.Remove("uid-1"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(file); !os.IsNotExist(err) {
		t.Errorf("the limits of a pod that is gone still exist (%v)", err)
	}
}

// The library then limits cores alone: it must not count memory that the driver counts, nor show another amount.
func TestBackendLibraryLimitsCoresBesideTheDriver(t *testing.T) {
	for name, test := range map[string]struct {
		directory string
		limits    []Limit
		by        Backend
		text      string // empty: no library
	}{
		"memory and cores":            {"/state/lib", []Limit{{uuid, 10240, 30}}, Native, uuid + " - 30\n"},
		"cores of one GPU of two":     {"/state/lib", []Limit{{uuid, 10240, 30}, {other, 2048, 0}}, Native, uuid + " - 30\n" + other + " - 0\n"},
		"cores, and all the memory":   {"/state/lib", []Limit{{uuid, 0, 30}}, Library, uuid + " - 30\n"},
		"memory alone":                {"/state/lib", []Limit{{uuid, 10240, 0}}, Native, ""},
		"a node without the library":  {"", []Limit{{uuid, 10240, 30}}, Native, ""},
		"nor memory that is limited":  {"", []Limit{{uuid, 0, 30}}, Whole, ""},
		"nothing that is not all":     {"/state/lib", []Limit{{uuid, 0, 0}}, Whole, ""},
		"all the cores, with a share": {"/state/lib", []Limit{{uuid, 10240, 100}}, Native, uuid + " - 100\n"},
	} {
		t.Run(name, func(t *testing.T) {
			l, c := ours(t), Container{"uid-1", "main"}
			l.Backend, l.Directory, l.Seats = Native, test.directory, &cores.Seats{Directory: t.TempDir(), Lend: true}
			if by := l.Of(test.limits); by != test.by {
				t.Errorf("limited by %s, want %s", by, test.by)
			}
			got := mounted(t, l, c, test.limits)
			if err := l.Make(c, test.limits); err != nil {
				t.Fatal(err)
			}
			if test.text == "" {
				if got["/etc/ld.so.preload"] != "" || got["/usr/local/vgpu/limits"] != "" || got["/usr/local/vgpu/cores/"+uuid] != "" {
					t.Errorf("mounts %v, want no library", got)
				}
				return
			}
			file, _, _ := strings.Cut(got["/usr/local/vgpu/limits"], " ")
			if text, err := os.ReadFile(file); err != nil || string(text) != "gpufabric-limits 1\n"+test.text {
				t.Errorf("the limits are %q (%v), want %q", text, err, test.text)
			}
			page, _, _ := strings.Cut(got["/usr/local/vgpu/cores.own/"+uuid], " ")
			order, _, _ := strings.Cut(got["/usr/local/vgpu/cores/"+uuid], " ")
			if _, err := os.Stat(filepath.Join(order, filepath.Base(page))); err != nil ||
				got["/etc/ld.so.preload"] != "/state/lib/ld.so.preload ro" {
				t.Errorf("mounts %v (%v), want the library and its seat", got, err)
			}
		})
	}
}

func TestBackendDoesNotLimitAWholeGPU(t *testing.T) {
	for _, backend := range []Backend{Native, Library, HAMiCore} {
		l := ours(t)
		l.Backend = backend
		limits := []Limit{{UUID: uuid}}
		if by, mounts := l.Of(limits), mounted(t, l, Container{"uid-1", "main"}, limits); by != Whole || mounts["/etc/ld.so.preload"] != "" {
			t.Errorf("%s: by %s, mounts %v; want none for a whole GPU", backend, by, mounts)
		}
	}
}

// Leftovers of an earlier run of the container must not count as in use, or be trusted.
func TestInjectionEmptiesDirectoriesOfARestart(t *testing.T) {
	l, c := ours(t), Container{"uid-1", "main"}
	limits := []Limit{{uuid, 10240, 0}}
	for range 3 {
		if err := l.Make(c, limits); err != nil {
			t.Fatal(err)
		}
		for _, in := range []string{l.Containers, l.Locks} {
			directory := filepath.Join(in, "uid-1_main")
			if entries, err := os.ReadDir(directory); err != nil || len(entries) != 0 {
				t.Fatalf("in %s are %v (%v)", directory, entries, err)
			}
			if err := os.WriteFile(filepath.Join(directory, "cudevshr.cache"), []byte("forged"), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := l.Sweep(); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(l.Containers); err != nil || len(entries) != 1 {
		t.Errorf("%v are left (%v), want the container's directory alone", entries, err)
	}
}
