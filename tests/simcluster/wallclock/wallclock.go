// Package wallclock steps the wall clock of a single running process, as an administrator or NTP steps a machine's.
//
// A Go program reads the clock through the function __vdso_clock_gettime, which the kernel maps into every process. Step
// overwrites it in that process only, with a function that queries the kernel and adds an offset to CLOCK_REALTIME. The program is
// neither changed nor notified. Its monotonic clock, which timers and time-outs use, is not affected, as on a machine whose
// clock is stepped. Step needs no privilege for a child process.
package wallclock

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// ErrUnsupported means that the clock cannot be changed on this machine's architecture.
var ErrUnsupported = errors.New("only amd64 processes can be given a clock of their own")

// replacement is clock_gettime with an offset for CLOCK_REALTIME, in amd64's machine code; the offset, in seconds, follows it.
var replacement = [...]byte{ //nolint:gochecknoglobals // a constant, which Go has no arrays of
	0xb8, 0xe4, 0, 0, 0, // mov eax, SYS_clock_gettime
	0x0f, 0x05, // syscall
	0x85, 0xc0, // test eax, eax
	0x75, 0x0e, // jne done
	0x85, 0xff, // test edi, edi: CLOCK_REALTIME is 0
	0x75, 0x0a, // jne done
	0x48, 0x8b, 0x0d, 10, 0, 0, 0, // mov rcx, [offset]
	0x48, 0x01, 0x0e, // add [rsi], rcx
	0xc3,             // done: ret
	0, 0, 0, 0, 0, 0, // up to a multiple of 8
}

const offsetSize = 8

// attempts bounds how often a process is stopped to find all of its threads outside of the function. A read of the clock takes
// about 50 ns.
const attempts = 50

// Step moves the process's wall clock forward or back by whole seconds. Steps add up. The children of the process have the true
// time.
func Step(pid int, by time.Duration) error {
	if err := step(pid, int64(by/time.Second)); err != nil {
		return fmt.Errorf("step the clock of process %d by %s: %w", pid, by, err)
	}
	return nil
}

func step(pid int, seconds int64) error {
	if runtime.GOARCH != "amd64" {
		return ErrUnsupported
	}
	memory, err := os.OpenFile(fmt.Sprintf("/proc/%d/mem", pid), os.O_RDWR, 0)
	if err != nil {
		return err
	}
	defer memory.Close() //nolint:errcheck // written without a buffer
	function, err := find(pid, memory)
	if err != nil {
		return err
	}
	current := make([]byte, len(replacement)+offsetSize)
	if _, err := memory.ReadAt(current, function); err != nil {
		return fmt.Errorf("read the clock's function: %w", err)
	}
	if code, offset := current[:len(replacement)], current[len(replacement):]; bytes.Equal(code, replacement[:]) {
		seconds += int64(binary.LittleEndian.Uint64(offset))
		return write(memory, function+int64(len(replacement)), binary.LittleEndian.AppendUint64(nil, uint64(seconds)))
	}
	return whileStopped(pid, function, func() error {
		return write(memory, function, binary.LittleEndian.AppendUint64(replacement[:], uint64(seconds)))
	})
}

func write(memory *os.File, at int64, content []byte) error {
	if _, err := memory.WriteAt(content, at); err != nil {
		return fmt.Errorf("write the clock's function: %w", err)
	}
	return nil
}

// find is the address of the process's __vdso_clock_gettime.
func find(pid int, memory *os.File) (int64, error) {
	maps, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(maps)) {
		if !strings.HasSuffix(strings.TrimSpace(line), "[vdso]") {
			continue
		}
		var from, to int64
		if _, err := fmt.Sscanf(line, "%x-%x", &from, &to); err != nil {
			return 0, fmt.Errorf("read where the vDSO is: %w", err)
		}
		image := make([]byte, to-from)
		if _, err := memory.ReadAt(image, from); err != nil {
			return 0, fmt.Errorf("read the vDSO: %w", err)
		}
		offset, err := inImage(image)
		return from + offset, err
	}
	return 0, errors.New("it has no vDSO")
}

func inImage(image []byte) (int64, error) {
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return 0, fmt.Errorf("read the vDSO: %w", err)
	}
	symbols, err := file.DynamicSymbols()
	if err != nil {
		return 0, fmt.Errorf("read the vDSO: %w", err)
	}
	for _, symbol := range symbols {
		if symbol.Name == "__vdso_clock_gettime" {
			if symbol.Size < uint64(len(replacement)+offsetSize) {
				return 0, fmt.Errorf("this kernel's __vdso_clock_gettime has %d bytes, too few for another", symbol.Size)
			}
			return int64(symbol.Value), nil
		}
	}
	return 0, errors.New("the vDSO has no __vdso_clock_gettime")
}

// whileStopped runs change while the process is stopped and no thread is inside the function at the address.
func whileStopped(pid int, function int64, change func() error) error {
	defer syscall.Kill(pid, syscall.SIGCONT) //nolint:errcheck // it may have been killed meanwhile
	for range attempts {
		if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
			return fmt.Errorf("stop it: %w", err)
		}
		elsewhere, err := outside(pid, function, function+int64(len(replacement)+offsetSize))
		if err != nil {
			return err
		}
		if elsewhere {
			return change()
		}
		if err := syscall.Kill(pid, syscall.SIGCONT); err != nil {
			return fmt.Errorf("let it go on: %w", err)
		}
		time.Sleep(time.Millisecond) // a thread that runs has no event
	}
	return fmt.Errorf("its threads did not stop outside the clock's function in %d attempts", attempts)
}

// outside reports whether every thread is stopped outside of the range.
func outside(pid int, from, to int64) (bool, error) {
	threads, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", pid))
	if err != nil || len(threads) == 0 {
		return false, fmt.Errorf("it has ended (%w)", err)
	}
	for _, thread := range threads {
		content, err := os.ReadFile(thread)
		if errors.Is(err, os.ErrNotExist) || errors.Is(err, syscall.ESRCH) {
			continue // the thread ended
		}
		if err != nil {
			return false, err
		}
		words := strings.Fields(string(content)) // the last is the program counter; "running" for a thread that runs
		counter, err := strconv.ParseInt(strings.TrimPrefix(words[len(words)-1], "0x"), 16, 64)
		if err != nil || counter >= from && counter < to {
			return false, nil //nolint:nilerr // it still runs
		}
	}
	return true, nil
}
