package injection

import "fmt"

// Backend is what holds a container to its share of a GPU.
type Backend string

// The backends. MIG, and of memory the driver's own limit, are boundaries against hostile tenants; the libraries are fair sharing between
// friends, which a program can go around.
const (
	// Native is NVIDIA's own driver, from r615 on: memory, by the container's cgroup.
	Native Backend = "native"
	// Library is libvgpu.so of this project: memory.
	Library Backend = "library"
	// HAMiCore is HAMi-core, which the administrator put on the node: memory and cores.
	HAMiCore Backend = "hami-core"
	// None leaves limits to what the image has: they come as environment alone.
	None Backend = "none"
	// MIG is a MIG instance: the hardware holds its containers.
	MIG Backend = "mig"
	// Whole is no limit, where the container may use all the memory of each of its GPUs.
	Whole Backend = "whole"
)

// auto is the wish to have the best backend that the node has.
const auto = "auto"

// Choose is the backend of a node, by what the administrator wants and what the node has: a directory with HAMi-core, a driver that limits
// memory, or our library. native says why the driver does not, nil where it does.
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
			return "", fmt.Errorf("--limits=%s: %w; with %s such a node has the best backend that it can have", wish, native, auto)
		}
		if directory != "" {
			return "", fmt.Errorf("--limits=%s and --limiter-dir=%s contradict each other: the directory holds HAMi-core", wish, directory)
		}
	case Library:
		if !library {
			return "", fmt.Errorf("--limits=%s: there is no library at --limiter-library: use this project's image, or name the library", wish)
		}
		if directory != "" {
			return "", fmt.Errorf("--limits=%s and --limiter-dir=%s contradict each other: the directory holds HAMi-core", wish, directory)
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

// Of is what holds a container with these limits on a node of this limiter.
func (l Limiter) Of(limits []Limit) Backend {
	limited := false
	for _, limit := range limits {
		limited = limited || limit.MemoryMiB > 0 || limit.Cores > 0 && l.Backend == HAMiCore
	}
	if !limited {
		return Whole
	}
	return l.Backend
}
