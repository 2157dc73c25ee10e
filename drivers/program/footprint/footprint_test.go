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
	before := fileKiB(t)
	if err := Trim(); err != nil {
		t.Fatal(err)
	}
	if after := fileKiB(t); after >= before {
		t.Errorf("%d KiB of the program's file are resident, %d before", after, before)
	}
}

// fileKiB is how much of this program's file is mapped, in KiB.
func fileKiB(t *testing.T) int {
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

func TestMemoryIsGivenBackWhenItHasGrown(t *testing.T) {
	at := time.Now()
	for _, test := range []struct {
		name     string
		last     trim
		after    time.Duration
		resident int
		want     bool
	}{
		{"when the process has started", trim{}, 0, 20 << 20, true},
		{"not for what a role at rest has again", trim{at, 12 << 20}, look, 14 << 20, false},
		{"after an event", trim{at, 12 << 20}, look, 15 << 20, true},
		{"not for a small part", trim{at, 40 << 20}, look, 49 << 20, false},
		{"for a quarter", trim{at, 40 << 20}, look, 50 << 20, true},
		{"not to a large process, whose heap grows and shrinks all the time", trim{at, 100 << 20}, look, 200 << 20, false},
		{"to a large process now and then", trim{at, 100 << 20}, period, 200 << 20, true},
		{"not where it shrank", trim{at, 12 << 20}, look, 8 << 20, false},
		{"now and then however little it grew", trim{at, 12 << 20}, period, 12 << 20, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			if got := test.last.due(at.Add(test.after), test.resident); got != test.want {
				t.Errorf("got %v", got)
			}
		})
	}
}

// The first renewal gives back, the next has nothing to: the process is at rest in between.
func TestReleasedMemoryIsRemembered(t *testing.T) {
	var last trim
	if err := last.renew(); err != nil {
		t.Fatal(err)
	}
	if size, err := resident(); err != nil || last.left < 1<<20 || size < last.left/2 {
		t.Errorf("%d bytes are resident, %d were after giving back: %v", size, last.left, err)
	}
	grown := make([]byte, last.left+leastGrown)
	for i := 0; i < len(grown); i += os.Getpagesize() {
		grown[i] = 1
	}
	first := last.at
	if err := last.renew(); err != nil {
		t.Fatal(err)
	}
	if !last.at.After(first) || last.left < len(grown) {
		t.Errorf("memory was not given back after it had grown by %d bytes: %+v", len(grown), last)
	}
	runtime.KeepAlive(grown)
	second := last.at
	if err := last.renew(); err != nil || last.at != second {
		t.Errorf("memory was given back again without growth: %+v, %v", last, err)
	}
}

func TestTheCollectorRunsOftenWhileTheHeapIsSmall(t *testing.T) {
	before := debug.SetGCPercent(100)
	t.Cleanup(func() { debug.SetGCPercent(before) })
	pace := []metrics.Sample{{Name: "/gc/gogc:percent"}}
	await := func(want uint64) {
		t.Helper()
		// The pace is set by a finalizer, some time after a collection; nothing tells when.
		for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
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
