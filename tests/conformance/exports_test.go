package conformance

import (
	"debug/elf"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/build/repository"
	"gpufabric.io/fakes/profile"
)

// exports are the names that a library offers.
func exports(t *testing.T, path string) map[string]bool {
	t.Helper()
	f, err := elf.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	}()
	symbols, err := f.DynamicSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		t.Fatal(err)
	}
	names := map[string]bool{}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && elf.ST_TYPE(s.Info) == elf.STT_FUNC {
			names[s.Name] = true
		}
	}
	return names
}

// built is a library of the fakes.
func built(t *testing.T, name string) string {
	t.Helper()
	checkout, err := repository.Root()
	if err != nil {
		t.Fatal(err)
	}
	return filepath.Join(checkout, "fakes/build/lib", name)
}

func TestCUDAStandInExportsOnlyDriverNames(t *testing.T) {
	real := exports(t, nvidiaProgram(t, "libcuda1", "550", "usr/lib/*/nvidia/current/libcuda.so.1"))
	ours := exports(t, built(t, "libcuda.so.1"))
	for name := range ours {
		if strings.HasPrefix(name, "cu") && !real[name] {
			t.Errorf("%s is in no libcuda of NVIDIA's", name)
		}
	}
	t.Logf("%d of the %d names of NVIDIA's libcuda are there", len(ours), len(real))
	if len(real) < 400 || len(ours) < 20 {
		t.Errorf("%d names in NVIDIA's libcuda and %d in ours", len(real), len(ours))
	}
}

func TestFakeNVMLHasTheNamesOfItsVersion(t *testing.T) {
	for version := range smiVersions {
		real := exports(t, nvidiaProgram(t, "libnvidia-ml1", version, "usr/lib/*/nvidia/current/libnvidia-ml.so.1"))
		p, err := profile.Load("a100-40")
		if err != nil {
			t.Fatal(err)
		}
		p.Driver.Version = version + ".1"
		ours := exports(t, filepath.Join(renderNode(t, p).root, "driver/usr/lib64/libnvidia-ml.so.1"))
		for name := range real {
			if strings.HasPrefix(name, "nvml") && !ours[name] {
				t.Errorf("NVIDIA's library of %s has %s, and the fake has not", version, name)
			}
		}
		for name := range ours {
			if strings.HasPrefix(name, "nvml") && !real[name] {
				t.Errorf("NVIDIA's library of %s lacks %s, and the fake has it", version, name)
			}
		}
	}
}
