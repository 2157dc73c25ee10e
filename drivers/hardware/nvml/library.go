// Package nvml reads a node's GPUs through NVIDIA's management library.
package nvml

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/hardware/driver"
)

const libraryName = driver.Library

// Load returns the library of the driver that a search finds. Each first Init searches again, so it finds a driver that is
// installed later; until then Init reports the missing function. A process can hold one such library only: go-nvml binds its symbols
// globally.
func Load(search driver.Search) nvml.Interface {
	open := func(path string) nvml.Interface { return nvml.New(nvml.WithLibraryPath(path)) }
	return &located{Interface: open(path(search.Locate())), search: search, open: open}
}

// located is a library that is searched for when it is started.
type located struct {
	nvml.Interface
	search driver.Search
	open   func(path string) nvml.Interface

	mu sync.Mutex
	// started counts the Inits without a Shutdown. Other code starts and stops a running library (go-nvlib does so to find out whether
	// there is one). It must get the running one: a new one in its place would have no symbols after that stop.
	started int
	// unprepared names the device nodes that could not be made for the library.
	unprepared error
	// tooOld names the functions that the roles call and the library lacks.
	tooOld error
}

// needed are the functions that the roles call without first checking that the library has them. A missing one would end the
// process (go-nvml binds when a function is called). The list omits functions that old drivers already had.
func needed() []string {
	return []string{
		"nvmlDeviceGetArchitecture", "nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses",
		"nvmlDeviceGetMPSComputeRunningProcesses",
		"nvmlDeviceGetFieldValues", "nvmlDeviceGetMinorNumber", "nvmlDeviceGetSupportedEventTypes", "nvmlDeviceGetBrand",
		"nvmlDeviceSetComputeMode",
		"nvmlDeviceGetGpuInstancePossiblePlacements", "nvmlDeviceCreateGpuInstanceWithPlacement", "nvmlGpuInstanceGetComputeInstanceProfileInfo",
		"nvmlSystemGetCudaDriverVersion", "nvmlEventSetWait",
	}
}

// lacks returns the needed functions that a started library lacks.
func lacks(lib nvml.Interface) error {
	var missing []string
	for _, name := range needed() {
		if lib.Extensions().LookupSymbol(name) != nil {
			missing = append(missing, name)
		}
	}
	if len(missing) == 0 {
		return nil
	}
	version, code := lib.SystemGetDriverVersion()
	if code != nvml.SUCCESS {
		version = "of unknown version"
	}
	return fmt.Errorf("the driver %s is too old: its %s has no %s; install a later driver", version, libraryName, strings.Join(missing, ", "))
}

// explain adds to a message the reason that the files on the node show, and returns that reason.
func (l *located) explain(reason, message string) (string, string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.tooOld != nil {
		return TooOld, "waiting for the NVIDIA driver: " + l.tooOld.Error()
	}
	if word, why := l.search.Trouble(); why != "" {
		reason = word
		message += "; " + why
	}
	if l.unprepared != nil {
		message += "; it may lack device nodes: " + l.unprepared.Error()
	}
	return reason, message
}

// Init loads the library from its present place and starts it. It starts a running library once more.
func (l *located) Init() nvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.started == 0 {
		at := l.search.Locate()
		// NVML itself reports that it lacks a node that cannot be made.
		l.unprepared = l.search.Prepare(at)
		l.Interface = l.open(path(at))
	}
	code := l.Interface.Init()
	if code != nvml.SUCCESS {
		return code
	}
	if l.started == 0 {
		if l.tooOld = lacks(l.Interface); l.tooOld != nil {
			_ = l.Interface.Shutdown() // the library was started just above
			return nvml.ERROR_FUNCTION_NOT_FOUND
		}
	}
	l.started++
	return nvml.SUCCESS
}

// Shutdown undoes one Init.
func (l *located) Shutdown() nvml.Return {
	l.mu.Lock()
	defer l.mu.Unlock()
	code := l.Interface.Shutdown()
	if code == nvml.SUCCESS && l.started > 0 {
		l.started--
	}
	return code
}

// path is the argument for the dynamic linker.
func path(at driver.Location) string {
	switch {
	case at.Library != "":
		return at.Library
	case at.Root.Path == "/":
		return libraryName // the linker's own configuration may list more directories of this machine
	default:
		return filepath.Join(at.Root.Path, driver.LibraryDirs()[0], libraryName) // names the missing function
	}
}

// Error is a call of the library that failed.
type Error struct {
	// Call is the function that was called, with its argument: "DeviceGetHandleByIndex(3)".
	Call   string
	Return nvml.Return
}

func (e *Error) Error() string {
	return fmt.Sprintf("NVML %s: %s (code %d)", e.Call, describe(e.Return), int32(e.Return))
}

// Is makes errors.Is(err, nvml.ERROR_...) work.
func (e *Error) Is(target error) bool {
	code, ok := target.(nvml.Return)
	return ok && code == e.Return
}

// describe gives words for the codes that an operator meets. The library's own words need a loaded library.
func describe(code nvml.Return) string {
	switch code {
	case nvml.ERROR_LIBRARY_NOT_FOUND:
		return libraryName + " was not found: is the NVIDIA driver installed, and below hardware.driverRoot (by the flag --driver-root)?"
	case nvml.ERROR_DRIVER_NOT_LOADED:
		return "the NVIDIA kernel driver is not loaded"
	case nvml.ERROR_NOT_SUPPORTED:
		return "not supported"
	case nvml.ERROR_GPU_IS_LOST:
		return "the GPU has fallen off the bus"
	case nvml.ERROR_FUNCTION_NOT_FOUND:
		return "the installed driver is too old for this call"
	case nvml.ERROR_LIB_RM_VERSION_MISMATCH:
		return "the library is of another version than the kernel's modules, as after an upgrade without a reboot"
	case nvml.ERROR_NO_PERMISSION:
		return "no permission"
	default:
		return "failed"
	}
}

// check makes an error of a return code other than success.
func check(code nvml.Return, call string, args ...any) error {
	if code == nvml.SUCCESS {
		return nil
	}
	return &Error{Call: fmt.Sprintf(call, args...), Return: code}
}

// Driver is an initialised library.
type Driver struct {
	lib nvml.Interface
}

// Open initialises a library. Close must be called.
func Open(lib nvml.Interface) (*Driver, error) {
	if err := check(lib.Init(), "Init"); err != nil {
		return nil, err
	}
	return &Driver{lib: lib}, nil
}

// Close shuts the library down.
func (d *Driver) Close() error { return check(d.lib.Shutdown(), "Shutdown") }

// Version is the kernel driver's version ("580.95.05").
func (d *Driver) Version() (string, error) {
	version, code := d.lib.SystemGetDriverVersion()
	return version, check(code, "SystemGetDriverVersion")
}
