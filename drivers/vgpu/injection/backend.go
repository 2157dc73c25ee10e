package injection

import (
	"fmt"
	"slices"
)

// Backend is the mechanism that limits a container to its share of a GPU.
type Backend string

// The backends. MIG, and for memory the driver's own limit, are boundaries against hostile tenants. The libraries only divide GPUs
// between cooperating tenants: a program can bypass them.
const (
	// Native is NVIDIA's own driver, from r615 on: memory, by the container's cgroup. It limits no cores: our library does, and leaves
	// the memory to the driver.
	Native Backend = "native"
	// Library is libvgpu.so of this project: memory and cores.
	Library Backend = "library"
	// HAMiCore is HAMi-core, which the administrator put on the node: memory and cores.
	HAMiCore Backend = "hami-core"
	// None leaves the limits to the image: they are only set as environment.
	None Backend = "none"
	// MIG is a MIG instance: the hardware enforces it.
	MIG Backend = "mig"
	// Whole is no limit: the container may use all the memory of each of its GPUs.
	Whole Backend = "whole"
)

// auto is the setting for the best backend of the node.
const auto = "auto"

// Choose returns the backend of a node, by the administrator's choice and the node's abilities: a directory with HAMi-core, a driver that
// limits memory, or our library. native is the reason why the driver cannot limit memory, nil if it can.
func Choose(wish, directory string, native error, library bool) (Backend, error) {
	switch Backend(wish) {
	case auto:
		switch {
		case directory != "":
			return HAMiCore, nil
		case native == nil:
			return Native, nil
		case library:
			return Library, nil
		}
		return None, nil
	case Native:
		if native != nil {
			return "", fmt.Errorf("--limits=%s: %w; with %s such a node uses the best available backend", wish, native, auto)
		}
		if directory != "" {
			return "", fmt.Errorf("--limits=%s and --limiter-dir=%s contradict each other: the directory has HAMi-core", wish, directory)
		}
	case Library:
		if !library {
			return "", fmt.Errorf("--limits=%s: there is no library at --limiter-library: use this project's image, or name the library", wish)
		}
		if directory != "" {
			return "", fmt.Errorf("--limits=%s and --limiter-dir=%s contradict each other: the directory has HAMi-core", wish, directory)
		}
	case HAMiCore:
		if directory == "" {
			return "", fmt.Errorf("--limits=%s: name the directory on the node that holds libvgpu.so and ld.so.preload (--limiter-dir)", wish)
		}
	case None:
	default:
		return "", fmt.Errorf("--limits %q: %s, %s, %s, %s and %s are allowed", wish, auto, Native, Library, HAMiCore, None)
	}
	return Backend(wish), nil
}

// Of returns the backend that enforces these limits of a container on a node with this limiter: of its memory, where that is limited, and
// else of its cores.
func (l Limiter) Of(limits []Limit) Backend {
	memory := slices.ContainsFunc(limits, func(limit Limit) bool { return limit.MemoryMiB > 0 })
	switch cores := coreLimit(limits) > 0; {
	case memory, cores && (l.Backend == HAMiCore || l.Backend == Library):
		return l.Backend
	case cores && l.coresBesideDriver():
		return Library
	}
	return Whole
}

// coresBesideDriver reports whether our library limits cores on a node whose driver limits memory.
func (l Limiter) coresBesideDriver() bool { return l.Backend == Native && l.Directory != "" }

// ours reports whether a container with these limits gets our library.
func (l Limiter) ours(limits []Limit) bool {
	by := l.Of(limits)
	return by == Library || by == Native && l.coresBesideDriver() && coreLimit(limits) > 0
}
