package cores

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/node/tmpfs"
)

// Places in a page (gate.h).
const (
	wantsUntilAt, busyUntilAt, busyAt, shutUntilAt = 64, 72, 80, 88
)

func TestSeatsSurviveAPageThatItsContainerSpoils(t *testing.T) {
	s := &Seats{Directory: t.TempDir()}
	open(t, s, "uid-1_main", share(gpuA, 30))
	path := filepath.Join(s.Directory, gpuA, pageOf("uid-1_main"))
	for _, size := range []int64{0, 7, 1 << 20} {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		if had := s.Charged("uid-1_main", gpuA); had != 0 {
			t.Errorf("%s are charged by a page of %d bytes", had, size)
		}
		open(t, s, fmt.Sprintf("uid-2_%d", size), share(gpuA, 1))
	}
	if info, err := os.Stat(path); err != nil || info.Size() != pageBytes {
		t.Errorf("the page was left enlarged: %v (%v)", info, err)
	}
	if err := os.WriteFile(path, []byte(fmt.Sprintf("%04096d", 0)), 0o600); err != nil {
		t.Fatal(err)
	}
	if used := s.Used(); len(used) != 4 {
		t.Errorf("used: %+v", used)
	}
}

func TestSeatsOfABoundedDirectoryCannotGrow(t *testing.T) {
	s := &Seats{Directory: t.TempDir(), Lend: true, Bounded: true}
	t.Cleanup(func() { _ = tmpfs.Remove(filepath.Join(s.Directory, gpuA)) })
	if err := s.Open("uid-1_main", shares(gpuA, 30)); errors.Is(err, unix.EPERM) {
		t.Skipf("mounting is for root alone: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	file, err := os.OpenFile(filepath.Join(s.Directory, gpuA, pageOf("uid-1_main")), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	if _, err := file.WriteAt(make([]byte, 4*pageBytes), pageBytes); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("a page grows: %v", err)
	} else {
		t.Logf("attacker sees: %v", err)
	}
	for i := range most - 1 {
		open(t, s, fmt.Sprintf("uid-2_%d", i), share(gpuA, 1))
	}
}

// The monitor sees vgpu-plugin's directories, and has no capability.
func TestSeatsAreClosedToRootWithoutCapabilities(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("skipped: only root has the capability that the directory asks for")
	}
	s := &Seats{Directory: t.TempDir()}
	open(t, s, "uid-1_main", share(gpuA, 30))
	seen := make(chan error)
	for _, name := range []string{pageOf("uid-1_main"), orderFile} {
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends, without its capabilities
			head := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
			var none [2]unix.CapUserData
			if err := unix.Capset(&head, &none[0]); err != nil {
				seen <- err
				return
			}
			fd, err := unix.Open(filepath.Join(s.Directory, gpuA, name), unix.O_RDWR|unix.O_CLOEXEC, 0)
			if err == nil {
				err = unix.Close(fd)
			}
			seen <- err
		}()
		err := <-seen
		if !errors.Is(err, unix.EACCES) {
			t.Errorf("without capabilities, root opens another's %s: %v", name, err)
		}
		t.Logf("attacker sees: %v", err)
	}
}

// A container's library reads its neighbours' pages. A neighbour can keep its own time and not lend it. It cannot stop a process or take
// time from others' percentages. Outside the library, the GPU's own time slices limit it.
func TestLibraryContinuesBesideANeighbourWithFalseRecords(t *testing.T) {
	cuda, gpus := machine(t)
	gpu, spin := gpus[0], compiled(t, "spin")
	honest := pair(t)[0]
	for lie, write := range map[string]func(page []byte, now uint64){
		"it always wants the GPU": func(page []byte, now uint64) { binary.NativeEndian.PutUint64(page[wantsUntilAt:], now+1e8) },
		"a debt for ever":         func(page []byte, _ uint64) { binary.NativeEndian.PutUint64(page[shutUntilAt:], math.MaxInt64) },
		"it is busy 2^62 times": func(page []byte, now uint64) {
			binary.NativeEndian.PutUint64(page[busyUntilAt:], now+1e8)
			binary.NativeEndian.PutUint64(page[busyAt:], 1<<62)
		},
		"no page": func(page []byte, _ uint64) {
			for i := range page {
				page[i] = 0xff
			}
		},
	} {
		t.Run(lie, func(t *testing.T) {
			s := &Seats{Directory: t.TempDir(), Lend: true}
			preload := honest.seat(t, s, "uid-honest_main", share(gpu, 50))
			open(t, s, "uid-liar_main", share(gpu, 50))
			page, err := os.OpenFile(filepath.Join(s.Directory, gpu, pageOf("uid-liar_main")), os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer func() { _ = page.Close() }()
			process := exec.CommandContext(t.Context(), spin, cuda, "1")
			process.Env, process.Stderr = append(os.Environ(), preload), os.Stderr
			done := make(chan error, 1)
			var out []byte
			go func() { out, err = process.Output(); done <- err }()
			content := make([]byte, pageBytes)
			if _, err := page.ReadAt(content, 0); err != nil {
				t.Fatal(err)
			}
			for tick := time.Tick(20 * time.Millisecond); ; <-tick {
				select {
				case err := <-done:
					var ran, took float64
					if n, _ := fmt.Sscan(string(out), &ran, &took); err != nil || n != 2 || ran == 0 {
						t.Errorf("%q (%v)", out, err)
					}
					return
				default:
				}
				now, err := monotonic()
				if err != nil {
					t.Fatal(err)
				}
				write(content, uint64(now)) //nolint:gosec // since the boot
				if _, err := page.WriteAt(content, 0); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
}
