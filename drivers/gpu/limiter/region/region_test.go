package region

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

const gpu = "GPU-5c0d1e2f-0000-4a4a-8b8b-000000000001"

// write makes the bytes of a region of one device and one process, in the given layout.
func write(l layout) []byte {
	b := make([]byte, l.size+1)
	put32 := func(at int64, v uint32) { binary.LittleEndian.PutUint32(b[at:], v) }
	put64 := func(at int64, v uint64) { binary.LittleEndian.PutUint64(b[at:], v) }
	put32(0, magic)
	if l.version.Major > 0 {
		put32(4, uint32(l.version.Major))
		put32(8, uint32(l.version.Minor))
	}
	put64(l.deviceCount, 1)
	copy(b[l.uuids:], gpu)
	put64(l.memoryLimits, 10240<<20)
	put64(l.coreLimits, 50)
	slot := l.processes
	put32(slot, 7)
	put32(slot+4, 4711)
	put64(slot+8, 100)
	put64(slot+8+16, 300)
	put64(slot+8+32, 400)
	if l.utilization > 0 {
		put64(slot+l.utilization+16, 42)
	}
	put32(l.processCount, 1)
	put32(l.processCount+12, 1)
	if l.lastKernel > 0 {
		put64(l.lastKernel, 1763000000)
	}
	return b
}

func layoutV12() layout {
	l := layoutV1
	l.version = Version{1, 2}
	l.sequence = sequenceV12
	return l
}

func TestReadUnderstandsEveryLayout(t *testing.T) {
	process := Process{PID: 7, HostPID: 4711, Memory: []Memory{{Context: 100, Data: 300, Total: 400}}, Utilization: []uint64{42}}
	withoutUtilization := process
	withoutUtilization.Utilization = nil
	devices := []Device{{UUID: gpu, MemoryLimit: 10240 << 20, CoreLimit: 50}}
	for name, test := range map[string]struct {
		layout layout
		want   Region
	}{
		"layout 0 has no utilisation and no last kernel": {layoutV0,
			Region{Devices: devices, Processes: []Process{withoutUtilization}, Priority: 1}},
		"layout 1.1": {layoutV1, Region{Version: Version{1, 1}, Devices: devices, Processes: []Process{process}, Priority: 1,
			LastKernel: 1763000000}},
		"layout 1.2": {layoutV12(), Region{Version: Version{1, 2}, Devices: devices, Processes: []Process{process}, Priority: 1,
			LastKernel: 1763000000}},
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "region.cache")
			if err := os.WriteFile(path, write(test.layout), 0o600); err != nil {
				t.Fatal(err)
			}
			got, err := Read(path)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(&test.want, got); diff != "" {
				t.Errorf("region (-want +got):\n%s", diff)
			}
			if got.Used(0) != 400 {
				t.Errorf("used %d bytes, want 400", got.Used(0))
			}
		})
	}
}

func TestDecodeRejectsOtherFiles(t *testing.T) {
	changed := func(change func(b []byte)) []byte {
		b := write(layoutV12())
		change(b)
		return b
	}
	for name, content := range map[string][]byte{
		"an empty file":                nil,
		"a file of a few bytes":        []byte("hello"),
		"another magic":                changed(func(b []byte) { b[0]++ }),
		"a version of the future":      changed(func(b []byte) { b[8] = 9 }),
		"more devices than fit":        changed(func(b []byte) { b[56] = 17 }),
		"a device count of 2^63":       changed(func(b []byte) { b[63] = 0x80 }),
		"a truncated region":           write(layoutV12())[:2000000],
		"a region with bytes appended": append(write(layoutV12()), 1, 2),
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := Decode(bytes.NewReader(content), int64(len(content))); !errors.Is(err, ErrNotARegion) {
				t.Errorf("got %v, %v; want ErrNotARegion", got, err)
			}
		})
	}
}

func TestDecodeLimitsInputOfTenant(t *testing.T) {
	l := layoutV12()
	b := write(l)
	binary.LittleEndian.PutUint32(b[l.processCount:], 0xffffffff)
	copy(b[l.uuids:], "GPU-\x1b[31m\nfake")
	got, err := Decode(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if len(got.Processes) != 1 {
		t.Errorf("%d processes, want the 1 live slot", len(got.Processes))
	}
	if got.Devices[0].UUID != "GPU-" {
		t.Errorf("UUID %q was not cut at its first unprintable byte", got.Devices[0].UUID)
	}
}

func TestDecodeLeavesOutASlotThatStaysLocked(t *testing.T) {
	l := layoutV12()
	b := write(l)
	b[l.processes+l.sequence] = 1
	got, err := Decode(bytes.NewReader(b), int64(len(b)))
	if err != nil {
		t.Fatal(err)
	}
	if got.Torn != 1 || len(got.Processes) != 0 {
		t.Errorf("torn %d, processes %v; want the one slot counted as torn", got.Torn, got.Processes)
	}
}

func TestUsedSaturates(t *testing.T) {
	r := Region{Processes: []Process{{Memory: []Memory{{Total: ^uint64(0) - 1}}}, {Memory: []Memory{{Total: 5}}}}}
	if r.Used(0) != ^uint64(0) {
		t.Errorf("used %d, want the maximum", r.Used(0))
	}
}

func TestReadRefusesLinksAndPipes(t *testing.T) {
	dir := t.TempDir()
	target := filepath.Join(dir, "real")
	if err := os.WriteFile(target, write(layoutV12()), 0o600); err != nil {
		t.Fatal(err)
	}
	link := filepath.Join(dir, "link")
	if err := os.Symlink(target, link); err != nil {
		t.Fatal(err)
	}
	pipe := filepath.Join(dir, "pipe")
	if err := unix.Mkfifo(pipe, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, path := range []string{link, pipe, dir, filepath.Join(dir, "absent")} {
		if got, err := Read(path); err == nil {
			t.Errorf("Read(%s) = %v, want an error", filepath.Base(path), got)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(write(layoutV12())[:4096], layoutV1.size+1)
	f.Add(write(layoutV0)[:4096], layoutV0.size+1)
	f.Fuzz(func(_ *testing.T, head []byte, size int64) {
		// The interesting bytes are at the start; the rest is zero, as in a fresh file.
		if size < 0 || size > layoutV1.size+2 {
			return
		}
		b := make([]byte, size)
		copy(b, head)
		region, err := Decode(bytes.NewReader(b), size)
		if err != nil {
			return
		}
		for i := range region.Devices {
			region.Used(i)
		}
	})
}
