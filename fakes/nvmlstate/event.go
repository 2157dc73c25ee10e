package nvmlstate

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"gpufabric.io/fakes/state"
)

const supportedEvents = nvml.EventTypeSingleBitEccError | nvml.EventTypeDoubleBitEccError | nvml.EventTypePState |
	nvml.EventTypeXidCriticalError | nvml.EventTypeClock

// eventSet stores the types for which each GPU is registered, and the last of the node's events that it has read.
type eventSet struct {
	*mock.EventSet
	lib *library

	mu     sync.Mutex
	freed  bool
	wanted map[int]uint64
	file   *state.File // the file that seen counts in
	seen   uint64
}

func (l *library) EventSetCreate() (nvml.EventSet, nvml.Return) {
	f, r := l.call("EventSetCreate")
	if r != nvml.SUCCESS {
		return nil, r
	}
	head, err := f.EventHead()
	if err != nil {
		return nil, nvml.ERROR_UNKNOWN
	}
	return &eventSet{EventSet: l.sets, lib: l, wanted: map[int]uint64{}, file: f, seen: head}, nvml.SUCCESS
}

func (s *eventSet) Free() nvml.Return {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.freed {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	s.freed = true
	return nvml.SUCCESS
}

func supported(m *state.Model) uint64 {
	if m.ECC == 0 {
		return supportedEvents &^ (nvml.EventTypeSingleBitEccError | nvml.EventTypeDoubleBitEccError)
	}
	return supportedEvents
}

func (d *device) GetSupportedEventTypes() (uint64, nvml.Return) {
	return get(d, "DeviceGetSupportedEventTypes", anyPlace, model(supported))
}

func (d *device) RegisterEvents(types uint64, set nvml.EventSet) nvml.Return {
	s, ok := set.(*eventSet)
	if !ok || s.lib != d.lib {
		return nvml.ERROR_INVALID_ARGUMENT
	}
	all, r := d.GetSupportedEventTypes()
	if r != nvml.SUCCESS {
		return r
	}
	if types&^all != 0 {
		return nvml.ERROR_NOT_SUPPORTED
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.wanted[d.gpu] |= types
	return nvml.SUCCESS
}

func (s *eventSet) Wait(milliseconds uint32) (nvml.EventData, nvml.Return) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Duration(milliseconds)*time.Millisecond)
	defer cancel()
	for {
		f, r := s.lib.open()
		if r != nvml.SUCCESS {
			return nvml.EventData{}, r
		}
		s.mu.Lock()
		if s.file != f { // the node was rendered again, and counts from 0 again
			s.file, s.seen = f, 0
		}
		seen := s.seen
		s.mu.Unlock()
		e, err := f.Next(ctx, seen)
		switch {
		case errors.Is(err, context.DeadlineExceeded):
			return nvml.EventData{}, nvml.ERROR_TIMEOUT
		case errors.Is(err, state.ErrReplaced):
			continue
		case err != nil:
			return nvml.EventData{}, nvml.ERROR_UNKNOWN
		}
		s.mu.Lock()
		s.seen = e.Number
		wanted := s.wanted[int(e.GPU)]&e.Type != 0
		s.mu.Unlock()
		if wanted {
			return nvml.EventData{Device: s.lib.device(int(e.GPU)), EventType: e.Type, EventData: e.Data, GpuInstanceId: e.GPUInstance,
				ComputeInstanceId: e.ComputeInstance}, nvml.SUCCESS
		}
	}
}
