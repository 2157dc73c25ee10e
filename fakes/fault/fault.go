// Package fault changes a fake node while it runs, for fakefabric inject, play and the agent's HTTP endpoint.
package fault

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"gpufabric.io/fakes/state"
)

// Arguments are the arguments of an event, by name.
type Arguments map[string]string

// Kind is one kind of event.
type Kind struct {
	Name    string `json:"name"`
	Summary string `json:"summary"`
	// Parameters are its parameters; those with a default may be omitted.
	Parameters []Parameter `json:"parameters"`
	apply      func(*change) error
}

// Parameter is one argument of an event.
type Parameter struct {
	Name    string `json:"name"`
	Summary string `json:"summary"`
	// Default is used when the argument is omitted; Required: it must be given.
	Default  string `json:"default,omitempty"`
	Required bool   `json:"required,omitempty"`
}

// ErrRefused marks an event that is impossible in the node's state; the state is unchanged.
var ErrRefused = errors.New("refused")

func refuse(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrRefused, fmt.Sprintf(format, args...))
}

// Find gives the kind of that name.
func Find(name string) (Kind, error) {
	var names []string
	for _, k := range Kinds() {
		if k.Name == name {
			return k, nil
		}
		names = append(names, k.Name)
	}
	return Kind{}, fmt.Errorf("no event %q; there are %s", name, strings.Join(names, ", "))
}

// Apply triggers one event on the node under root. Events of one node happen one after the other.
func Apply(root, name string, args Arguments) error {
	k, err := Find(name)
	if err != nil {
		return err
	}
	full, err := k.complete(args)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	unlock, err := lock(root)
	if err != nil {
		return err
	}
	defer unlock()
	f, err := state.Open(root)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // this only releases a mapping
	if err := k.apply(&change{root: root, file: f, args: full}); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}

// Check reports every wrong or missing argument; values are checked when the event happens.
func (k Kind) Check(args Arguments) error {
	_, err := k.complete(args)
	return err
}

// complete fills defaults in and reports every wrong or missing argument.
func (k Kind) complete(args Arguments) (Arguments, error) {
	full := Arguments{}
	var errs []error
	var known []string
	for _, p := range k.Parameters {
		known = append(known, p.Name)
		v, ok := args[p.Name]
		switch {
		case ok:
			full[p.Name] = v
		case p.Required:
			errs = append(errs, fmt.Errorf("%s is missing (%s)", p.Name, p.Summary))
		default:
			full[p.Name] = p.Default
		}
	}
	for _, name := range slices.Sorted(maps.Keys(args)) {
		if !slices.Contains(known, name) {
			errs = append(errs, fmt.Errorf("takes no argument %q; allowed: %s", name, strings.Join(known, ", ")))
		}
	}
	return full, errors.Join(errs...)
}

// lock excludes other writers of the tree until the returned function is called.
func lock(root string) (func(), error) {
	f, err := os.OpenFile(filepath.Join(filepath.Dir(state.Path(root)), "inject.lock"), os.O_CREATE|os.O_RDWR, 0o666)
	if err != nil {
		return nil, fmt.Errorf("no fake node at %s: %w", root, err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock node: %w", err), f.Close())
	}
	return func() { _ = f.Close() }, nil // closing releases the lock
}

// change is one event being applied.
type change struct {
	root string
	file *state.File
	args Arguments
}

// number reads an argument within bounds.
func (c *change) number(name string, least, most int) (int, error) {
	v, err := strconv.Atoi(c.args[name])
	if err != nil || v < least || v > most {
		return 0, fmt.Errorf("%s is %q, want a number from %d to %d", name, c.args[name], least, most)
	}
	return v, nil
}

func (c *change) flag(name string) (uint32, error) {
	v, err := strconv.ParseBool(c.args[name])
	if err != nil {
		return 0, fmt.Errorf("%s is %q, want true or false", name, c.args[name])
	}
	if v {
		return 1, nil
	}
	return 0, nil
}

// gpu reads the argument gpu, an index that the node must have.
func (c *change) gpu() (int, error) {
	var n int
	if err := c.file.View(func(b *state.Body) { n = len(b.GPUs) }); err != nil {
		return 0, err
	}
	i, err := strconv.Atoi(c.args["gpu"])
	if err != nil || i < 0 {
		return 0, fmt.Errorf("gpu is %q, want an index from 0", c.args["gpu"])
	}
	if i >= n {
		return 0, refuse("there is no GPU %d; the node has %d", i, n)
	}
	return i, nil
}

// onGPU changes the GPU that the argument names; fn's error leaves everything as it was.
func (c *change) onGPU(fn func(*state.Model, *state.GPU) error) error {
	i, err := c.gpu()
	if err != nil {
		return err
	}
	return c.file.Update(func(b *state.Body) error { return fn(&b.Node.Model, b.GPUs[i]) })
}

// replace replaces one file of the tree atomically; readers see the old text or the new.
func (c *change) replace(path, text string) error {
	tmp := filepath.Join(filepath.Dir(state.Path(c.root)), ".inject")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}
