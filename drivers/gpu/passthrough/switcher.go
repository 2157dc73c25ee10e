package passthrough

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/hardware/pci"
)

// usersPause is the time between two looks for processes that have a GPU open: there is no event for the moment when a process
// closes a device.
const usersPause = time.Second

// persistenced is NVIDIA's daemon that keeps GPUs open so that the driver keeps their state. It closes a GPU whose persistence mode
// is switched off.
const persistenced = "nvidia-persistenced"

// ErrNoAnswer is wrapped by the error for a write to sysfs that has not returned. It cannot be interrupted. The next try on the same
// function waits for it.
var ErrNoAnswer = errors.New("the kernel has not finished")

// Switcher changes the drivers of cards. Calls for one card must not overlap.
type Switcher struct {
	Places  Places
	Journal *Journal
	// Write writes text to an attribute of sysfs by one write(2); nil: the kernel's.
	Write func(path, text string) error
	// Persistence switches a GPU's persistence mode; nil: it is left as it is.
	Persistence func(ctx context.Context, gpu pci.Address, on bool) error

	mu sync.Mutex
	// pending are the writes that have not returned, by function.
	pending map[pci.Address]*pendingWrite
}

type pendingWrite struct {
	path string
	done chan struct{} // closed when err is set
	err  error
}

// Take binds a card to vfio-pci for a claim. It may be repeated after it failed, and after a crash at any point. waiting is called
// while a process keeps the GPU from changing its driver. A Take that failed leaves the card as it is: Give restores it.
func (s *Switcher) Take(ctx context.Context, claim types.UID, card *Card, waiting func(error)) error {
	if err := s.settle(ctx, card.Functions); err != nil {
		return err
	}
	e, known, err := s.entry(card)
	if err != nil {
		return err
	}
	if bound, err := s.bound(e.Functions); err != nil || bound && known && e.Claim == claim {
		return err // its virtual machine may run
	}
	e.Claim = claim
	if err := s.awaitFree(ctx, card.Name(), &e, waiting); err != nil {
		return err
	}
	for _, f := range e.Functions {
		now, err := s.Places.driverOf(f.Address)
		if err != nil {
			return err
		}
		to := f.target()
		if now == to {
			continue
		}
		if err := s.step(ctx, card.Name(), &e, f.Address, "keep it to "+to, s.Places.function(f.Address, "driver_override"), to); err != nil {
			return err
		}
		if now != "" {
			if err := s.step(ctx, card.Name(), &e, f.Address, "unbind it from "+now, s.Places.driver(now, "unbind"),
				string(f.Address)); err != nil {
				return err
			}
		}
		if err := s.step(ctx, card.Name(), &e, f.Address, "bind it to "+to, s.Places.driver(to, "bind"), string(f.Address)); err != nil {
			return err
		}
	}
	e.Step = "taken"
	return s.Journal.put(card.Name(), &e)
}

// bound reports whether all functions have their driver of VFIO.
func (s *Switcher) bound(all []Origin) (bool, error) {
	for _, f := range all {
		if now, err := s.Places.driverOf(f.Address); err != nil || now != f.target() {
			return false, err
		}
	}
	return true, nil
}

// entry returns the card's entry in the journal, with its origin as an earlier try has found it; known: there was one.
func (s *Switcher) entry(card *Card) (e Entry, known bool, err error) {
	if e, known = s.Journal.get(card.Name()); known {
		return e, true, nil
	}
	e.Group, e.Identity = card.Group, card.Identity
	for _, a := range card.Functions {
		driver, err := s.Places.driverOf(a)
		if err != nil {
			return e, false, err
		}
		override, err := s.Places.overrideOf(a)
		if err != nil {
			return e, false, err
		}
		origin := Origin{Address: a, Driver: driver, Override: override}
		if a == card.GPU.Address && card.VFIO != Driver {
			origin.VFIO = card.VFIO
		}
		e.Functions = append(e.Functions, origin)
	}
	return e, false, nil
}

// awaitFree waits until no process has the GPU open. It has nvidia-persistenced close it.
func (s *Switcher) awaitFree(ctx context.Context, card string, e *Entry, waiting func(error)) error {
	gpu := e.Functions[0].Address
	var used *InUseError
	for {
		err := s.Places.free(ctx, gpu, e.Group)
		if err != nil && used != nil && ctx.Err() != nil {
			return used // rather than that the last look did not end in time
		}
		if !errors.As(err, &used) {
			return err
		}
		driver, _ := s.Places.driverOf(gpu)
		others := slices.ContainsFunc(used.Users, func(u Process) bool { return u.Name != persistenced })
		switch {
		case !others && !e.Persistence && s.Persistence != nil && driver == gpuDriver:
			e.Persistence, e.Step = true, "switch persistence mode off"
			if err := s.Journal.put(card, e); err != nil {
				return err
			}
			if err := s.Persistence(ctx, gpu, false); err != nil {
				return fmt.Errorf("switch the persistence mode of GPU %s off: %w", gpu, err)
			}
			continue
		case waiting != nil:
			waiting(err)
		}
		select {
		case <-time.After(usersPause):
		case <-ctx.Done():
			return err
		}
	}
}

// step writes the next step to the journal, and does it.
func (s *Switcher) step(ctx context.Context, card string, e *Entry, f pci.Address, words, path, text string) error {
	e.Step = fmt.Sprintf("%s: %s", f, words)
	if err := s.Journal.put(card, e); err != nil {
		return err
	}
	return s.do(ctx, e, f, path, text)
}

// stepBack is step for a card that is given back.
func (s *Switcher) stepBack(ctx context.Context, card string, e *Entry, f pci.Address, words, path, text string) error {
	e.Step = fmt.Sprintf("%s: %s", f, words)
	s.Journal.giveBack(ctx, card, e)
	return s.do(ctx, e, f, path, text)
}

// do does the step of an entry.
func (s *Switcher) do(ctx context.Context, e *Entry, f pci.Address, path, text string) error {
	if err := s.write(ctx, f, path, text); err != nil {
		return fmt.Errorf("%s: write %q to %s: %w", e.Step, text, path, err)
	}
	return nil
}

// write writes to sysfs. It returns when ctx ends, though the write may then go on.
func (s *Switcher) write(ctx context.Context, f pci.Address, path, text string) error {
	w := &pendingWrite{path: path, done: make(chan struct{})}
	s.mu.Lock()
	if s.pending == nil {
		s.pending = map[pci.Address]*pendingWrite{}
	}
	s.pending[f] = w
	s.mu.Unlock()
	do := s.Write
	if do == nil {
		do = writeAttribute
	}
	go func() { // It ends with the write, which nothing can interrupt; pending has it until then.
		w.err = do(path, text)
		s.mu.Lock()
		delete(s.pending, f)
		s.mu.Unlock()
		close(w.done)
	}()
	select {
	case <-w.done:
		return w.err
	case <-ctx.Done():
		return fmt.Errorf("%w: %w", ErrNoAnswer, ctx.Err())
	}
}

// settle waits for the writes of an earlier try that have not returned.
func (s *Switcher) settle(ctx context.Context, functions []pci.Address) error {
	for _, f := range functions {
		s.mu.Lock()
		w := s.pending[f]
		s.mu.Unlock()
		if w == nil {
			continue
		}
		select {
		case <-w.done:
		case <-ctx.Done():
			return fmt.Errorf("%w an earlier write of %s to %s: a process may have the GPU open (fuser -v /dev/nvidia* /dev/vfio/*)", ErrNoAnswer,
				f, w.path)
		}
	}
	return nil
}

// writeAttribute makes one write(2): sysfs takes each as a whole.
func writeAttribute(path, text string) error {
	file, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = file.WriteString(text)
	return errors.Join(err, file.Close())
}

// Give restores the drivers of a card that was taken, and removes it from the journal. It may be repeated. note describes a restoration
// that remains partial; empty: it is complete.
func (s *Switcher) Give(ctx context.Context, card string) (note string, err error) {
	e, taken := s.Journal.get(card)
	if !taken {
		return "", nil
	}
	addresses := make([]pci.Address, len(e.Functions))
	for i, f := range e.Functions {
		addresses[i] = f.Address
	}
	if err := s.settle(ctx, addresses); err != nil {
		return "", err
	}
	if e.Functions, note = s.present(e.Functions); len(e.Functions) == 0 {
		s.Journal.giveBack(ctx, card, nil)
		return note, nil
	}
	if err := s.awaitFreed(ctx, card, &e); err != nil {
		return "", err
	}
	for _, f := range e.Functions { // all of them, before one gets a driver: its group must not be a virtual machine's any more
		if err := s.release(ctx, card, &e, f); err != nil {
			return "", err
		}
	}
	for _, f := range e.Functions {
		missing, err := s.restore(ctx, card, &e, f)
		if err != nil {
			return "", err
		}
		if missing != "" {
			note = missing
		}
	}
	if e.Persistence && s.Persistence != nil && note == "" {
		if err := s.Persistence(ctx, e.Functions[0].Address, true); err != nil {
			note = fmt.Sprintf("GPU %s is back, but its persistence mode is off: %v", e.Functions[0].Address, err)
		}
	}
	s.Journal.giveBack(ctx, card, nil)
	return note, nil
}

// present are the functions that are still on the bus.
func (s *Switcher) present(all []Origin) (there []Origin, note string) {
	for _, f := range all {
		if _, err := os.Lstat(s.Places.function(f.Address, "")); err == nil {
			there = append(there, f)
		} else {
			note = fmt.Sprintf("PCI function %s left the bus while a virtual machine had it", f.Address)
		}
	}
	return there, note
}

// awaitFreed waits until no virtual machine has the card open, where vfio-pci is to let it go. Where the node's processes cannot be
// seen, the kernel waits instead.
func (s *Switcher) awaitFreed(ctx context.Context, card string, e *Entry) error {
	driver, err := s.Places.driverOf(e.Functions[0].Address)
	if err != nil || !passes(driver) || e.Functions[0].Driver == driver {
		return err
	}
	err = s.awaitFree(ctx, card, e, nil)
	if errors.Is(err, errUnseen) {
		klog.FromContext(ctx).Info("Could not list the processes that have a GPU open", "card", card, "reason", err.Error())
		return nil
	}
	return err
}

// release unbinds a function from its driver of VFIO, and no longer keeps it to that driver.
func (s *Switcher) release(ctx context.Context, card string, e *Entry, f Origin) error {
	now, err := s.Places.driverOf(f.Address)
	if err != nil {
		return err
	}
	if passes(now) && f.Driver != now {
		if err := s.stepBack(ctx, card, e, f.Address, "unbind it from "+now, s.Places.driver(now, "unbind"), string(f.Address)); err != nil {
			return err
		}
	}
	override, err := s.Places.overrideOf(f.Address)
	if err != nil || override == f.Override {
		return err
	}
	// A line break alone clears it (drivers/base/driver.c, driver_set_override).
	return s.stepBack(ctx, card, e, f.Address, "keep it to no driver", s.Places.function(f.Address, "driver_override"), f.Override+"\n")
}

// restore binds a function to the driver that it had. missing: the driver is no longer loaded.
func (s *Switcher) restore(ctx context.Context, card string, e *Entry, f Origin) (missing string, err error) {
	now, err := s.Places.driverOf(f.Address)
	if err != nil || now != "" || f.Driver == "" {
		return "", err
	}
	if _, err := os.Stat(s.Places.driver(f.Driver, "bind")); err != nil {
		return fmt.Sprintf("PCI function %s has no driver: %s, which it had, is not loaded; it takes the function when it is loaded", f.Address,
			f.Driver), nil
	}
	return "", s.stepBack(ctx, card, e, f.Address, "bind it to "+f.Driver, s.Places.driver(f.Driver, "bind"), string(f.Address))
}

// GiveUnknown returns functions of which no journal has the origin: those that are kept to vfio-pci get the driver that the kernel
// finds for them.
func (s *Switcher) GiveUnknown(ctx context.Context, functions []pci.Address) error {
	for _, f := range functions {
		now, err := s.Places.driverOf(f)
		if err != nil {
			return err
		}
		override, err := s.Places.overrideOf(f)
		if err != nil {
			return err
		}
		if !passes(override) {
			continue
		}
		steps := [][2]string{{s.Places.function(f, "driver_override"), "\n"}}
		if passes(now) {
			steps = append(steps, [2]string{s.Places.driver(now, "unbind"), string(f)})
		}
		// drivers_probe tries every driver (drivers/base/bus.c, drivers_probe_store).
		steps = append(steps, [2]string{s.Places.Sysfs + "/bus/pci/drivers_probe", string(f)})
		for _, step := range steps {
			if err := s.write(ctx, f, step[0], step[1]); err != nil {
				return fmt.Errorf("return %s: write %q to %s: %w", f, step[1], step[0], err)
			}
		}
	}
	return nil
}
