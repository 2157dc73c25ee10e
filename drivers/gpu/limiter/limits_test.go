package limiter

import (
	"debug/elf"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"gpufabric.io/drivers/node/atomicfile"
)

const (
	first  = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	second = "GPU-bbbbbbbb-4e5f-6071-8293-a4b5c6d7e8f9"
	third  = "GPU-cccccccc-4e5f-6071-8293-a4b5c6d7e8f9"
)

func TestLimitsAreWrittenAsTheLibraryReadsThem(t *testing.T) {
	got, err := Text([]Limit{{UUID: first, Bytes: 10 << 30, Cores: 30}, {UUID: second}, {UUID: third, Elsewhere: true, Cores: 5}}, true)
	want := "gpufabric-limits 1\nclosed\n" + first + " 10737418240 30\n" + second + " 0 0\n" + third + " - 5\n"
	if err != nil || string(got) != want {
		t.Errorf("%q (%v), want %q", got, err, want)
	}
	read, err := Parse(got)
	if err != nil || len(read) != 3 || read[0] != (Limit{UUID: first, Bytes: 10 << 30, Cores: 30}) || read[1] != (Limit{UUID: second}) ||
		read[2] != (Limit{UUID: third, Elsewhere: true, Cores: 5}) {
		t.Errorf("read as %+v (%v)", read, err)
	}
	for name, limits := range map[string][]Limit{
		"none":                {},
		"more than it counts": make([]Limit, 17),
		"a MIG instance":      {{UUID: "MIG-1", Bytes: 1}},
		"a line more":         {{UUID: first + "\nclosed", Bytes: 1}},
		"one GPU twice":       {{UUID: first, Bytes: 1}, {UUID: first, Bytes: 1}},
		"less than nothing":   {{UUID: first, Bytes: -1}},
		"more than any GPU":   {{UUID: first, Bytes: 1<<47 + 1}},
		"cores over 100":      {{UUID: first, Bytes: 1, Cores: 101}},
		"cores under 0":       {{UUID: first, Bytes: 1, Cores: -1}},
		"memory twice":        {{UUID: first, Bytes: 1, Elsewhere: true}},
	} {
		if text, err := Text(limits, false); !errors.Is(err, ErrLimit) {
			t.Errorf("%s: %q (%v), want ErrLimit", name, text, err)
		}
	}
}

// If a preloaded library needs a newer glibc than an image has, the loader ends all of the image's programs, with CUDA or without.
func TestLibraryLoadsWithGlibc217(t *testing.T) {
	out := filepath.Join(t.TempDir(), "build")
	run(t, "OUT="+out)
	file, err := elf.Open(filepath.Join(out, Library))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	needs, err := file.ImportedSymbols()
	if err != nil || len(needs) == 0 {
		t.Fatalf("%d symbols are imported (%v)", len(needs), err)
	}
	for _, s := range needs {
		version, found := strings.CutPrefix(s.Version, "GLIBC_2.")
		if !found {
			continue // __cxa_finalize is weak, and the library itself defines the others
		}
		minor, _, _ := strings.Cut(version, ".")
		if n, err := strconv.Atoi(minor); err != nil || n > 17 {
			t.Errorf("%s is of %s, which images with glibc 2.17 do not have", s.Name, s.Version)
		}
	}
	libraries, err := file.ImportedLibraries()
	if err != nil || strings.Join(libraries, " ") != "libdl.so.2 libc.so.6" {
		t.Errorf("it needs the libraries %v (%v), want libdl.so.2, where dlopen stood before glibc 2.34, and libc.so.6", libraries, err)
	}
}

func TestLibraryIsInstalledCompletelyAndAgain(t *testing.T) {
	own, directory := filepath.Join(t.TempDir(), Library), filepath.Join(t.TempDir(), "lib")
	program, err := exec.LookPath("true")
	if err != nil {
		t.Fatal(err)
	}
	if runtime.GOOS == "linux" {
		if err := os.Symlink(program, own); err != nil { // any ELF file will do
			t.Fatal(err)
		}
	}
	for range 2 {
		if err := Install(own, directory, atomicfile.Writer{}); err != nil {
			t.Fatal(err)
		}
	}
	list, err := os.ReadFile(filepath.Join(directory, Preload))
	if err != nil || string(list) != "/usr/local/vgpu/libvgpu.so\n" {
		t.Errorf("the loader's list is %q (%v)", list, err)
	}
	info, err := os.Stat(filepath.Join(directory, Library))
	if err != nil || info.Mode().Perm() != 0o644 {
		t.Errorf("the library is %v (%v), want a file that every container's user reads", info, err)
	}
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("no library"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Install(text, directory, atomicfile.Writer{}); err == nil || !strings.Contains(err.Error(), "is not readable by all users") {
		t.Errorf("a file of text was installed as a library (%v)", err)
	}
}

// A mount on a directory that containers have already would split a share between them and those that come later.
func TestMakeDirectoryDoesNotMountOnAnExistingDirectory(t *testing.T) {
	path := filepath.Join(t.TempDir(), "account")
	for _, bytes := range []int64{0, LeastBytes} {
		if err := MakeDirectory(path, bytes); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Remove(path); err != nil { // EBUSY where something is mounted
		t.Error(err)
	}
}
