package passthrough_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"gpufabric.io/drivers/gpu/passthrough"
	"gpufabric.io/drivers/gpu/passthrough/passthroughtest"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/atomicfile"
)

const (
	gpu   = "0000:3b:00.0"
	audio = "0000:3b:00.1"
)

// rig is a node with one GPU, and its journal.
type rig struct {
	*passthroughtest.Kernel
	t       *testing.T
	journal string
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{Kernel: passthroughtest.New(t), t: t, journal: filepath.Join(t.TempDir(), "passthrough.json")}
	r.GPU("0000:3b:00", 17)
	return r
}

// start is a start of the program: it reads the journal that the last one left.
func (r *rig) start() *passthrough.Switcher {
	r.t.Helper()
	j, err := passthrough.OpenJournal(r.journal, atomicfile.Writer{})
	if err != nil {
		r.t.Fatal(err)
	}
	return &passthrough.Switcher{Places: r.Places(), Journal: j, Write: r.Write}
}

// card is the node's only card.
func (r *rig) card() *passthrough.Card {
	r.t.Helper()
	cards, problems, err := passthrough.Find(r.t.Context(), r.Places())
	if err != nil || len(problems) > 0 || len(cards) != 1 {
		r.t.Fatalf("found %d cards, problems %v, %v", len(cards), problems, err)
	}
	return cards[0]
}

func (r *rig) take(s *passthrough.Switcher) {
	r.t.Helper()
	if err := s.Take(r.t.Context(), "claim", r.card(), nil); err != nil {
		r.t.Fatal(err)
	}
}

// drivers are those of the GPU and of its audio function.
func (r *rig) drivers() string { return r.Driver(gpu) + " " + r.Driver(audio) }

func (r *rig) wantRestored(when string) {
	r.t.Helper()
	if r.drivers() != "nvidia snd_hda_intel" || r.Override(gpu) != "(null)" || r.Override(audio) != "(null)" {
		r.t.Errorf("%s: drivers %s, kept to %s and %s", when, r.drivers(), r.Override(gpu), r.Override(audio))
	}
}

func TestSwitcherBindsCardToVFIOAndRestoresItsDrivers(t *testing.T) {
	r := newRig(t)
	s := r.start()
	r.take(s)
	if got := r.drivers(); got != "vfio-pci vfio-pci" {
		t.Errorf("taken, the drivers are %s", got)
	}
	want := []string{
		gpu + "/driver_override vfio-pci", "nvidia/unbind " + gpu, "vfio-pci/bind " + gpu,
		audio + "/driver_override vfio-pci", "snd_hda_intel/unbind " + audio, "vfio-pci/bind " + audio,
	}
	if !slices.Equal(r.Writes, want) {
		t.Errorf("writes %v, want %v", r.Writes, want)
	}
	for range 2 {
		if note, err := s.Give(t.Context(), r.card().Name()); err != nil || note != "" {
			t.Fatal(note, err)
		}
		r.wantRestored("given back")
	}
	if left := s.Journal.Entries(); len(left) > 0 {
		t.Errorf("the journal still has %v", left)
	}
}

var errCrash = errors.New("killed")

// TestSwitcherRestoresCardWhenKilledAtAnyWrite kills the program before and after each write of Take and of Give, and starts another.
func TestSwitcherRestoresCardWhenKilledAtAnyWrite(t *testing.T) {
	for _, after := range []bool{false, true} {
		for n := 1; ; n++ {
			r := newRig(t)
			name, count := r.card().Name(), 0
			killed := r.start()
			killed.Write = func(path, text string) error {
				if count++; count > n || count == n && !after {
					return errCrash
				}
				if err := r.Write(path, text); err != nil {
					return err
				}
				if count == n {
					return errCrash
				}
				return nil
			}
			err := killed.Take(t.Context(), "claim", r.card(), nil)
			if err == nil {
				_, err = killed.Give(t.Context(), name)
			}
			if err == nil {
				if n < 11 {
					t.Fatalf("the whole way took only %d writes", n-1)
				}
				break
			}
			if !errors.Is(err, errCrash) {
				t.Fatal(err)
			}
			when := fmt.Sprintf("killed at write %d (after it: %t)", n, after)
			if n%2 == 0 { // the claim goes on, and ends later
				r.take(r.start())
				if got := r.drivers(); got != "vfio-pci vfio-pci" {
					t.Errorf("%s: prepared again, the drivers are %s", when, got)
				}
			}
			if note, err := r.start().Give(t.Context(), name); err != nil || note != "" {
				t.Errorf("%s: %s %v", when, note, err)
			}
			r.wantRestored(when)
		}
	}
}

func TestSwitcherDoesNotSwitchWhenJournalCannotBeWritten(t *testing.T) {
	r := newRig(t)
	j, err := passthrough.OpenJournal(r.journal, atomicfile.Writer{Before: func(atomicfile.Step, string) error { return errCrash }})
	if err != nil {
		t.Fatal(err)
	}
	s := &passthrough.Switcher{Places: r.Places(), Journal: j, Write: r.Write}
	if err := s.Take(t.Context(), "claim", r.card(), nil); !errors.Is(err, errCrash) {
		t.Errorf("take without a journal: %v", err)
	}
	if len(r.Writes) > 0 {
		t.Errorf("writes before the journal: %v", r.Writes)
	}
}

func TestSwitcherGivesCardBackWhenTheDiskIsFull(t *testing.T) {
	r := newRig(t)
	r.take(r.start())
	var full error
	j, err := passthrough.OpenJournal(r.journal, atomicfile.Writer{Before: func(atomicfile.Step, string) error { return full }})
	if err != nil {
		t.Fatal(err)
	}
	s, name := &passthrough.Switcher{Places: r.Places(), Journal: j, Write: r.Write}, r.card().Name()
	full = syscall.ENOSPC
	if note, err := s.Give(t.Context(), name); err != nil || note != "" {
		t.Fatal(note, err)
	}
	r.wantRestored("on a full disk")
	if left := s.Journal.Entries(); len(left) > 0 {
		t.Errorf("the card still counts as taken: %v", left)
	}
	// The journal on disk still has it: the next start finds the card restored.
	s = r.start()
	if note, err := s.Give(t.Context(), name); err != nil || note != "" || len(s.Journal.Entries()) > 0 {
		t.Errorf("after a restart: %s, %v, %v", note, err, s.Journal.Entries())
	}
	r.wantRestored("after a restart")
	r.take(s)
	full = nil
	if note, err := s.Give(t.Context(), name); err != nil || note != "" {
		t.Error(note, err)
	}
}

func TestSwitcherWaitsWhileProcessHasGPUOpen(t *testing.T) {
	r := newRig(t)
	closeIt := r.Open("python3", gpu)
	told := ""
	err := r.start().Take(t.Context(), "claim", r.card(), func(why error) {
		if told == "" && len(r.Writes) > 0 {
			t.Errorf("writes beside a process: %v", r.Writes)
		}
		told = why.Error()
		closeIt()
	})
	if err != nil || r.drivers() != "vfio-pci vfio-pci" {
		t.Errorf("after the process had ended: %v, drivers %s", err, r.drivers())
	}
	if !strings.Contains(told, "python3 (process 4001)") {
		t.Errorf("the wait says %q", told)
	}
}

func TestSwitcherReturnsUserOfGPUWhenContextEnds(t *testing.T) {
	r := newRig(t)
	r.Open("python3", gpu)
	ctx, cancel := context.WithCancel(t.Context())
	err := r.start().Take(ctx, "claim", r.card(), func(error) { cancel() })
	var used *passthrough.InUseError
	if !errors.As(err, &used) || len(r.Writes) > 0 {
		t.Errorf("got %v after writes %v", err, r.Writes)
	}
	r.wantRestored("never taken")
}

func TestSwitcherSwitchesPersistenceModeOffForNVIDIAsDaemon(t *testing.T) {
	r := newRig(t)
	closeIt := r.Open("nvidia-persistenced", gpu)
	var modes []bool
	s := r.start()
	s.Persistence = func(_ context.Context, at pci.Address, on bool) error {
		if modes = append(modes, on); !on {
			closeIt()
		}
		if at != gpu {
			t.Errorf("persistence mode of %s", at)
		}
		return nil
	}
	r.take(s)
	if _, err := s.Give(t.Context(), r.card().Name()); err != nil || !slices.Equal(modes, []bool{false, true}) {
		t.Errorf("persistence mode went %v, %v", modes, err)
	}
}

// A file that exists and cannot be read (no file descriptor is left, for one) is no proof that nobody uses the GPU. Root can read
// everything, so each file is of another kind here.
func TestSwitcherDoesNotSwitchWhenUsersOfGPUCannotBeRead(t *testing.T) {
	for name, c := range map[string]struct {
		taken bool
		spoil func(r *rig) string
		file  bool
	}{
		"descriptors of a process": {false, func(r *rig) string { return filepath.Join(r.Proc, "4001/fd") }, true},
		"a process's name":         {false, func(r *rig) string { return filepath.Join(r.Proc, "4001/comm") }, false},
		"the driver's description": {false, func(r *rig) string { return filepath.Join(r.Proc, "driver/nvidia/gpus", gpu, "information") },
			false},
		"descriptors of a virtual machine": {true, func(r *rig) string { return filepath.Join(r.Proc, "4001/fd") }, true},
		"device nodes of VFIO":             {true, func(r *rig) string { return filepath.Join(r.Sys, "bus/pci/devices", gpu, "vfio-dev") }, true},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t)
			s, card := r.start(), r.card()
			if c.taken {
				r.take(s)
			}
			closeIt := r.Open("python3", gpu)
			path := c.spoil(r)
			if err := os.RemoveAll(path); err != nil {
				t.Fatal(err)
			}
			spoilt := os.Mkdir(path, 0o755)
			if c.file {
				spoilt = errors.Join(os.Remove(path), os.WriteFile(path, nil, 0o600))
			}
			if spoilt != nil {
				t.Fatal(spoilt)
			}
			writes := len(r.Writes)
			ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second) // the kernel waits for the process
			defer cancel()
			var err error
			if c.taken {
				_, err = s.Give(ctx, card.Name())
			} else {
				err = s.Take(ctx, "claim", card, nil)
			}
			if err == nil || errors.Is(err, passthrough.ErrNoAnswer) || len(r.Writes) != writes || !strings.Contains(err.Error(), path) {
				t.Errorf("got %v, writes %v", err, r.Writes[writes:])
			}
			closeIt()
		})
	}
}

// givenUp gives a card back, which waits in vain, until the error is the one that is wanted: on a busy machine a short patience may end
// before the wait begins.
func givenUp(t *testing.T, s *passthrough.Switcher, card string, wanted func(error) bool) error {
	t.Helper()
	for patience := 50 * time.Millisecond; ; patience *= 4 {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		_, err := s.Give(ctx, card)
		cancel()
		if wanted(err) {
			return err
		}
		if err == nil || patience > time.Minute {
			t.Fatalf("after %s: %v", patience, err)
		}
	}
}

// A virtual machine that does not end keeps its GPU: the kernel's unbind would wait for it.
func TestSwitcherLeavesGPUToVirtualMachineThatNeverEnds(t *testing.T) {
	r := newRig(t)
	s := r.start()
	r.take(s)
	closeIt := r.Open("qemu-kvm", gpu)
	writes := len(r.Writes)
	err := givenUp(t, s, r.card().Name(), func(err error) bool { return err != nil && strings.Contains(err.Error(), "qemu-kvm") })
	if err == nil || len(r.Writes) != writes {
		t.Errorf("got %v, writes %v", err, r.Writes[writes:])
	}
	closeIt()
	if _, err := s.Give(t.Context(), r.card().Name()); err != nil {
		t.Error(err)
	}
	r.wantRestored("after the machine had ended")
}

// Where the node's processes cannot be seen, the kernel waits. The caller does not, and the next try goes on from there.
func TestSwitcherReturnsWhenKernelDoesNot(t *testing.T) {
	r := newRig(t)
	s := r.start()
	r.take(s)
	closeIt := r.Open("qemu-kvm", gpu)
	s.Places.HostProc = "/nowhere"
	for range 2 {
		_ = givenUp(t, s, r.card().Name(), func(err error) bool { return errors.Is(err, passthrough.ErrNoAnswer) })
	}
	closeIt()
	if _, err := s.Give(t.Context(), r.card().Name()); err != nil {
		t.Error(err)
	}
	r.wantRestored("after the machine had ended")
}

// A claim of a running virtual machine is prepared again when the program starts: its GPU must not change.
func TestSwitcherKeepsRunningVirtualMachineWhenClaimIsPreparedAgain(t *testing.T) {
	r := newRig(t)
	r.take(r.start())
	r.Open("qemu-kvm", gpu)
	writes := len(r.Writes)
	r.take(r.start())
	if len(r.Writes) != writes {
		t.Errorf("writes %v", r.Writes[writes:])
	}
}

func TestSwitcherNotesDriverThatIsNotLoadedAnyMore(t *testing.T) {
	r := newRig(t)
	s := r.start()
	r.take(s)
	r.Unload("nvidia")
	note, err := s.Give(t.Context(), r.card().Name())
	if err != nil || !strings.Contains(note, "nvidia") || r.drivers() != " snd_hda_intel" || r.Override(gpu) != "(null)" {
		t.Errorf("note %q, %v, drivers %q, kept to %s", note, err, r.drivers(), r.Override(gpu))
	}
	if left := s.Journal.Entries(); len(left) > 0 {
		t.Errorf("the journal still has %v", left)
	}
}

func TestSwitcherKeepsCardThatAdministratorBoundToVFIO(t *testing.T) {
	r := newRig(t)
	for _, f := range []string{gpu, audio} {
		path := filepath.Join(r.Sys, "bus/pci/devices", f)
		for _, w := range [][2]string{{path + "/driver_override", "vfio-pci"},
			{filepath.Join(r.Sys, "bus/pci/drivers", r.Driver(f), "unbind"), f},
			{filepath.Join(r.Sys, "bus/pci/drivers/vfio-pci/bind"), f}} {
			if err := r.Write(w[0], w[1]); err != nil {
				t.Fatal(err)
			}
		}
	}
	writes := len(r.Writes)
	s := r.start()
	r.take(s)
	if _, err := s.Give(t.Context(), r.card().Name()); err != nil || len(r.Writes) != writes {
		t.Errorf("%v, writes %v", err, r.Writes[writes:])
	}
	if got := r.drivers() + " " + r.Override(gpu); got != "vfio-pci vfio-pci vfio-pci" {
		t.Errorf("left as %s", got)
	}
}

// A GPU with coherent memory has a driver of VFIO of its own. One that an administrator bound to vfio-pci gets it too, and goes back.
func TestSwitcherBindsCoherentGPUToDriverOfItsOwn(t *testing.T) {
	for _, before := range []string{"nvidia", "vfio-pci"} {
		r := &rig{Kernel: passthroughtest.New(t), t: t, journal: filepath.Join(t.TempDir(), "passthrough.json")}
		r.Load(passthrough.GraceDriver)
		r.Add(passthroughtest.Function{Address: gpu, Vendor: "0x10de", Device: "0x2941", Class: "0x030200", Driver: "nvidia", Group: 17})
		override := "(null)"
		if before != "nvidia" {
			path := filepath.Join(r.Sys, "bus/pci/devices", gpu)
			for _, w := range [][2]string{{path + "/driver_override", before}, {filepath.Join(r.Sys, "bus/pci/drivers/nvidia/unbind"), gpu},
				{filepath.Join(r.Sys, "bus/pci/drivers", before, "bind"), gpu}} {
				if err := r.Write(w[0], w[1]); err != nil {
					t.Fatal(err)
				}
			}
			override = before
		}
		for range 2 { // the second time after a crash
			r.take(r.start())
			if got := r.Driver(gpu); got != passthrough.GraceDriver {
				t.Errorf("taken from %s, its driver is %s", before, got)
			}
		}
		closeIt := r.Open("qemu-kvm", gpu)
		_ = givenUp(t, r.start(), r.card().Name(), func(err error) bool { return err != nil && strings.Contains(err.Error(), "qemu-kvm") })
		closeIt()
		if note, err := r.start().Give(t.Context(), r.card().Name()); err != nil || note != "" {
			t.Fatal(note, err)
		}
		if r.Driver(gpu) != before || r.Override(gpu) != override {
			t.Errorf("given back, it has %s, kept to %s; want %s, %s", r.Driver(gpu), r.Override(gpu), before, override)
		}
	}
}

func TestSwitcherReturnsFunctionsOfLostJournal(t *testing.T) {
	r := newRig(t)
	s := r.start()
	r.take(s)
	for range 2 {
		if err := s.GiveUnknown(t.Context(), []pci.Address{gpu, audio}); err != nil {
			t.Fatal(err)
		}
		r.wantRestored("without a journal")
	}
}
