package nvml

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/hardware/driver"
)

// late is a library whose Init returns the codes in turn, and then always the last one.
type late struct {
	nvml.Interface
	codes []nvml.Return
	calls int
}

func (l *late) Init() nvml.Return {
	code := l.codes[min(l.calls, len(l.codes)-1)]
	l.calls++
	return code
}

func (l *late) DeviceGetCount() (int, nvml.Return) { return 0, nvml.SUCCESS }

func noGPUs() int { return 0 }

// coming is a library that lists as many GPUs as there are device nodes when it starts.
type coming struct {
	nvml.Interface
	nodes, listed, running int
	begins                 func(c *coming)
}

func (c *coming) Init() nvml.Return {
	c.begins(c)
	c.listed = c.nodes
	c.running++
	return nvml.SUCCESS
}

func (c *coming) Shutdown() nvml.Return { c.running--; return nvml.SUCCESS }

func (c *coming) DeviceGetCount() (int, nvml.Return) { return c.listed, nvml.SUCCESS }

// A driver container makes the GPUs' device nodes one after another, and NVML lists GPUs when it starts.
func TestNVMLIsStartedAgainUntilItShowsTheDriversGPUs(t *testing.T) {
	for name, c := range map[string]struct {
		nodes   []int // at each start; the last value repeats
		listed  int
		looks   time.Duration
		reports int
	}{
		"all are there":             {[]int{4}, 4, 0, 0},
		"none, then some, then all": {[]int{0, 2, 4}, 4, 2, 2},
		"none for a minute":         {[]int{0, 0, 0, 0, 0, 0, 4}, 4, 6, 1},
		"one that is broken":        {[]int{3}, 3, 2, 1},
		"more than the bus shows":   {[]int{5}, 5, 0, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			starts := 0
			lib := &coming{begins: func(l *coming) { l.nodes = c.nodes[min(starts, len(c.nodes)-1)]; starts++ }}
			begun, reports := time.Now(), 0
			if err := Await(t.Context(), lib, "/", func() int { return 4 }, func(reason, _ string) {
				reports++
				if reason != Incomplete {
					t.Errorf("%s: %s", name, reason)
				}
			}); err != nil {
				t.Fatal(err)
			}
			if lib.listed != c.listed || lib.running != 1 || time.Since(begun) != c.looks*awaitPause || reports != c.reports {
				t.Errorf("%s: %d GPUs, %d libraries run, after %s, told %d times", name, lib.listed, lib.running, time.Since(begun), reports)
			}
		})
	}
}

func TestAwaitWaitsForDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		lib := &late{codes: []nvml.Return{nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_LIBRARY_NOT_FOUND, nvml.ERROR_DRIVER_NOT_LOADED, nvml.SUCCESS}}
		var reports []string
		if err := Await(t.Context(), lib, "/run/nvidia/driver", noGPUs, func(_, message string) {
			reports = append(reports,
				message)
		}); err != nil {
			t.Fatal(err)
		}
		if len(reports) != 2 || !strings.Contains(reports[0], "under /run/nvidia/driver") || !strings.Contains(reports[0], "not found") ||
			!strings.Contains(reports[1], "not loaded") {
			t.Errorf("told %q, want each of the two reasons once", reports)
		}
	})
}

func TestAwaitingADriverEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		err := Await(ctx, &late{codes: []nvml.Return{nvml.ERROR_LIBRARY_NOT_FOUND}}, "/", noGPUs, func(string, string) {})
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("error %v, want that of the context", err)
		}
	})
}

func TestLibraryIsSearchedAtEachStart(t *testing.T) {
	root := t.TempDir()
	lib := Load(driver.Search{Roots: []driver.Place{{Path: root, Host: root}}})
	if code := lib.Init(); code != nvml.ERROR_LIBRARY_NOT_FOUND {
		t.Fatalf("Init without a library gives %d", code)
	}
	place := filepath.Join(root, "usr/lib/aarch64-linux-gnu", libraryName)
	if err := os.MkdirAll(filepath.Dir(place), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(place, []byte("not a library"), 0o600); err != nil {
		t.Fatal(err)
	}
	if found := path(lib.(*located).search.Locate()); found != place {
		t.Errorf("found %s, want %s", found, place)
	}
	before := lib.(*located).Interface
	if code := lib.Init(); code == nvml.SUCCESS {
		t.Error("a file that is no library was started")
	}
	if lib.(*located).Interface == before {
		t.Error("the second Init used the library that the first one did not find")
	}
}

// counted is a library that counts its starts.
type counted struct {
	lacking string
	nvml.Interface
	running int
}

func (c *counted) Init() nvml.Return     { c.running++; return nvml.SUCCESS }
func (c *counted) Shutdown() nvml.Return { c.running--; return nvml.SUCCESS }

func (c *counted) DeviceGetCount() (int, nvml.Return) { return 0, nvml.SUCCESS }

// Extensions is the method through which symbols are looked up.
func (c *counted) Extensions() nvml.ExtendedInterface { return symbols{lacking: c.lacking} }

func (c *counted) SystemGetDriverVersion() (string, nvml.Return) { return "450.80.02", nvml.SUCCESS }

// symbols has every symbol but one.
type symbols struct {
	nvml.ExtendedInterface
	lacking string
}

func (s symbols) LookupSymbol(name string) error {
	if name == s.lacking {
		return errors.New("undefined symbol")
	}
	return nil
}

// A call of a function that the library lacks ends the process (go-nvml binds lazily), so such a library is never started.
func TestAwaitReportsOldDriver(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		old := &counted{lacking: "nvmlDeviceGetMPSComputeRunningProcesses"}
		lib := &located{open: func(string) nvml.Interface { return old }}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var reports []string
		if err := Await(ctx, lib, "/", noGPUs, func(_, message string) {
			reports = append(reports, message)
		}); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatal(err)
		}
		if len(reports) != 1 || !strings.Contains(reports[0], "450.80.02 is too old") || !strings.Contains(reports[0], old.lacking) ||
			!strings.Contains(reports[0], "later driver") {
			t.Errorf("told %q, want once the version, the function that is missing and what to do", reports)
		}
		if old.running != 0 {
			t.Errorf("started %d times more than stopped", old.running)
		}
		old.lacking = "" // another driver was installed
		if err := Await(t.Context(), lib, "/", noGPUs, func(string, string) {}); err != nil {
			t.Error(err)
		}
	})
}

func TestLibraryStaysOpenForASecondUser(t *testing.T) {
	var opened []*counted
	lib := &located{open: func(string) nvml.Interface {
		opened = append(opened, &counted{})
		return opened[len(opened)-1]
	}}
	do := func(calls ...func() nvml.Return) {
		for _, call := range calls {
			if code := call(); code != nvml.SUCCESS {
				t.Fatalf("a call gives %d", code)
			}
		}
	}
	do(lib.Init, lib.Init, lib.Shutdown)
	if len(opened) != 1 || opened[0].running != 1 {
		t.Fatalf("opened %d libraries, the first of which runs %d times; want one that still runs", len(opened), opened[0].running)
	}
	do(lib.Shutdown, lib.Init)
	if len(opened) != 2 || opened[1].running != 1 {
		t.Errorf("opened %d libraries, want a second once the first had ended", len(opened))
	}
}
