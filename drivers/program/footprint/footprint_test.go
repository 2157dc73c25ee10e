package footprint

import (
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const smaps = `00400000-00411000 r--p 00000000 fd:00 1234                               /usr/bin/gpu fabric
Size:                 68 kB
Rss:                  68 kB
Private_Clean:        68 kB
Private_Dirty:         0 kB
Anonymous:             0 kB
VmFlags: rd mr mw me sd
00411000-02055000 r-xp 00011000 fd:00 1234                               /usr/bin/gpu fabric
Anonymous:             8 kB
04165000-04166000 rw-p 03d64000 fd:00 1234                               /usr/bin/gpu fabric
Anonymous:             0 kB
c000000000-c000400000 rw-p 00000000 00:00 0
Anonymous:          4096 kB
7f0000000000-7f0000001000 r--s 00000000 00:01 99                         /dev/shm/x
`

func TestOnlyPrivateMappingsThatNobodyChangedAreClean(t *testing.T) {
	mappings, err := parse(strings.NewReader(smaps))
	if err != nil {
		t.Fatal(err)
	}
	type seen struct {
		From, To uintptr
		Path     string
		Clean    bool
	}
	var got []seen
	for _, m := range mappings {
		got = append(got, seen{m.start, m.end, m.path, m.clean()})
	}
	want := []seen{
		{0x400000, 0x411000, "/usr/bin/gpu fabric", true},
		{0x411000, 0x2055000, "/usr/bin/gpu fabric", false}, // a page of it was changed, as a debugger does
		{0x4165000, 0x4166000, "/usr/bin/gpu fabric", false},
		{0xc000000000, 0xc000400000, "", false},
		{0x7f0000000000, 0x7f0000001000, "/dev/shm/x", false},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A program whose pages were given back while it runs goes on.
func TestAProgramRunsOnAfterItsPagesAreGivenBack(t *testing.T) {
	before := resident(t)
	if err := Trim(); err != nil {
		t.Fatal(err)
	}
	if after := resident(t); after >= before {
		t.Errorf("%d KiB of the program's file are resident, %d before", after, before)
	}
}

// resident is how much of this program's file is mapped, in KiB.
func resident(t *testing.T) int {
	t.Helper()
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		t.Fatal(err)
	}
	total, ours := 0, false
	for line := range strings.Lines(string(text)) {
		fields := strings.Fields(line)
		switch {
		case !strings.HasSuffix(fields[0], ":"):
			ours = fields[len(fields)-1] == program
		case fields[0] == "Rss:" && ours:
			kib := 0
			for _, digit := range fields[1] {
				kib = kib*10 + int(digit-'0')
			}
			total += kib
		}
	}
	return total
}

func TestTheCollectorIsBriskWhileTheHeapIsSmall(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	pace := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	await := func(want uint64) {
		t.Helper()
		// The pace is set by a finalizer, some time after a collection; nothing tells when.
		for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			runtime.GC()
			if metrics.Read(pace); pace[0].Value.Uint64() == want {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("the heap may grow by %d percent between collections, want %d", pace[0].Value.Uint64(), want)
			}
		}
	}
	(&growth{live: []metrics.Sample{{Name: "/gc/heap/live:bytes"}}}).adapt()
	await(smallGrowth)
	large := make([]byte, 2*smallHeap)
	await(usualGrowth)
	runtime.KeepAlive(large)
	await(smallGrowth)
}
