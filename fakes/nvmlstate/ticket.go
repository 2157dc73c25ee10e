package nvmlstate

import (
	"sync"
	"unsafe"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

// ticket represents a handle of C. Only its address counts; its size gives it an address of its own.
type ticket [16]byte

// target is the object of a ticket: a GPU, a MIG device, or with instance set the GPU instance gi. It is a copy without go-nvml's
// mocks, so that two handles of one thing share a ticket.
type target struct {
	gpu      int
	isMIG    bool
	instance bool
	gi, ci   uint32
}

// owner is the owner of the ticket at an address.
type owner struct {
	lib *library
	target
}

// tickets maps the addresses of all libraries' tickets to their owners. It belongs to the process, since C passes nothing but the address.
var tickets sync.Map

// ticket gives the handle of something for go-nvml's handlers. The garbage collector does not follow pointers to C's types, which is what
// the handlers hold, so tickets live until the library is shut down; there are at most as many as the node has devices.
func (l *library) ticket(of target) *ticket {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t, ok := l.tickets[of]; ok {
		return t
	}
	t := new(ticket)
	if l.inits > 0 { // else the handler answers as an unknown handle does
		l.tickets[of] = t
		tickets.Store(uintptr(unsafe.Pointer(t)), owner{l, of})
	}
	return t
}

// dropTickets drops all tickets at the end of the library's use; l.mu is held.
func (l *library) dropTickets() {
	for _, t := range l.tickets {
		tickets.Delete(uintptr(unsafe.Pointer(t)))
	}
	clear(l.tickets)
}

// held returns the *device or *gpuInstance of a handle, nil when the handle is not ours.
func held(handle unsafe.Pointer) any {
	found, ok := tickets.Load(uintptr(handle))
	if !ok {
		return nil
	}
	o := found.(owner)
	d := o.lib.device(o.gpu)
	if o.instance {
		return d.instance(o.gi)
	}
	d.isMIG, d.gi, d.ci = o.isMIG, o.gi, o.ci
	return d
}

func (d *device) ticket() *ticket {
	return d.lib.ticket(target{gpu: d.gpu, isMIG: d.isMIG, gi: d.gi, ci: d.ci})
}

func (g *gpuInstance) ticket() *ticket {
	return g.device.lib.ticket(target{gpu: g.device.gpu, instance: true, gi: g.id})
}

// go-nvml's handlers have no exported fields. These types have the same layout.
type (
	handler        struct{ handle *ticket }
	profileHandler struct {
		handle  *ticket
		profile int
	}
	engineHandler struct {
		handle          *ticket
		profile, engine int
	}
)

// Compile-time proof that the sizes agree; the test that compares the C and the Go library sees to the rest.
var (
	_ = [1]struct{}{}[unsafe.Sizeof(nvml.GpuFabricInfoHandler{})-unsafe.Sizeof(handler{})]
	_ = [1]struct{}{}[unsafe.Sizeof(nvml.TemperatureHandler{})-unsafe.Sizeof(handler{})]
	_ = [1]struct{}{}[unsafe.Sizeof(nvml.C2cModeInfoHandler{})-unsafe.Sizeof(handler{})]
	_ = [1]struct{}{}[unsafe.Sizeof(nvml.NvLinkInfoHandler{})-unsafe.Sizeof(handler{})]
	_ = [1]struct{}{}[unsafe.Sizeof(nvml.GpuInstanceProfileInfoHandler{})-unsafe.Sizeof(profileHandler{})]
	_ = [1]struct{}{}[unsafe.Sizeof(nvml.GpuInstanceProfileInfoByIdHandler{})-unsafe.Sizeof(profileHandler{})]
	_ = [1]struct{}{}[unsafe.Sizeof(nvml.ComputeInstanceProfileInfoHandler{})-unsafe.Sizeof(engineHandler{})]
)

func (d *device) GetGpuFabricInfoV() nvml.GpuFabricInfoHandler {
	h := handler{d.ticket()}
	return *(*nvml.GpuFabricInfoHandler)(unsafe.Pointer(&h))
}

func (d *device) GetTemperatureV() nvml.TemperatureHandler {
	h := handler{d.ticket()}
	return *(*nvml.TemperatureHandler)(unsafe.Pointer(&h))
}

func (d *device) GetC2cModeInfoV() nvml.C2cModeInfoHandler {
	h := handler{d.ticket()}
	return *(*nvml.C2cModeInfoHandler)(unsafe.Pointer(&h))
}

func (d *device) GetNvLinkInfo() nvml.NvLinkInfoHandler {
	h := handler{d.ticket()}
	return *(*nvml.NvLinkInfoHandler)(unsafe.Pointer(&h))
}

func (d *device) GetGpuInstanceProfileInfoV(profile int) nvml.GpuInstanceProfileInfoHandler {
	h := profileHandler{d.ticket(), profile}
	return *(*nvml.GpuInstanceProfileInfoHandler)(unsafe.Pointer(&h))
}

func (d *device) GetGpuInstanceProfileInfoByIdV(id int) nvml.GpuInstanceProfileInfoByIdHandler {
	h := profileHandler{d.ticket(), id}
	return *(*nvml.GpuInstanceProfileInfoByIdHandler)(unsafe.Pointer(&h))
}

func (g *gpuInstance) GetComputeInstanceProfileInfoV(profile, engine int) nvml.ComputeInstanceProfileInfoHandler {
	h := engineHandler{g.ticket(), profile, engine}
	return *(*nvml.ComputeInstanceProfileInfoHandler)(unsafe.Pointer(&h))
}
