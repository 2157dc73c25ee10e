package main

/*
#cgo LDFLAGS: -ldl
#include <stdlib.h>
#include "client.h"
*/
import "C"

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"unsafe"

	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/fakes/profile"
)

// clientWord makes this program a CUDA client: LIBRARY [hold]. CUDA runs in a separate process, because an error in it may end the
// process.
const clientWord = "cuda-client"

// answer is a client's result.
type answer struct {
	Step    string // the call that failed, empty where none did
	Code    int
	Driver  int
	Devices int
	Name    string
	UUID    string
	Memory  uint64
}

func client(args []string) int {
	if len(args) == 0 {
		return 2
	}
	path := C.CString(args[0])
	defer C.free(unsafe.Pointer(path))
	hold := 0
	if len(args) > 1 {
		hold = 1
	}
	var a C.struct_cuda_answer
	C.cuda_ask(path, C.int(hold), &a) //nolint:gocritic // what cgo makes of the call compares something with itself
	said := answer{Code: int(a.code), Driver: int(a.driver), Devices: int(a.devices), Name: C.GoString(&a.name[0]), Memory: uint64(a.memory)}
	if a.step != nil {
		said.Step = C.GoString(a.step)
	}
	said.UUID = "GPU-" + profile.FormatUUID(*(*[16]byte)(unsafe.Pointer(&a.uuid[0])))
	if err := json.NewEncoder(os.Stdout).Encode(said); err != nil {
		return 1
	}
	return 0
}

// cudaClient is this program as a client of the driver's CUDA on one GPU.
func (m *machine) cudaClient(ctx context.Context, gpu *inventory.GPU, env []string, words ...string) *exec.Cmd {
	library := filepath.Join(filepath.Dir(m.at.Library), "libcuda.so.1")
	cmd := exec.CommandContext(ctx, m.self, append([]string{clientWord, library}, words...)...)
	cmd.Env = append(os.Environ(), "CUDA_VISIBLE_DEVICES="+gpu.UUID)
	if m.at.Root.Path != "/" {
		cmd.Env = append(cmd.Env, "LD_LIBRARY_PATH="+filepath.Dir(m.at.Library))
	}
	cmd.Env = append(cmd.Env, env...)
	return cmd
}

// compareCUDA compares the stand-in's entry points with the driver's libcuda, and CUDA's description of a GPU with NVML's.
func compareCUDA(ctx context.Context, m *machine) result {
	if m.node == nil || len(m.node.GPUs) == 0 {
		return result{state: failed, text: errNoNVML.Error()}
	}
	library := filepath.Join(filepath.Dir(m.at.Library), "libcuda.so.1")
	theirs, err := exports(library)
	if err != nil {
		return refused(fmt.Errorf("the driver's CUDA: %w", err))
	}
	ours, err := exports(m.standIn)
	if err != nil {
		return refused(fmt.Errorf("the stand-in (build it with make fakes, or say -stand-in): %w", err))
	}
	var lacking []string
	for name := range ours {
		if !theirs[name] {
			lacking = append(lacking, "the driver's libcuda has no "+name)
		}
	}
	if len(lacking) > 0 {
		return result{state: failed, text: "the stand-in has names that the driver has not:", more: lacking}
	}
	gpu := m.node.GPUs[0]
	said, err := askCUDA(m.cudaClient(ctx, gpu, nil))
	if err != nil {
		return refused(err)
	}
	if said.UUID != gpu.UUID || said.Name != gpu.ProductName || said.Devices != 1 {
		return result{state: failed, text: fmt.Sprintf("CUDA_VISIBLE_DEVICES=%s gives %d devices, the first %s (%s); NVML says %s", gpu.UUID,
			said.Devices, said.Name, said.UUID, gpu.ProductName)}
	}
	return fine("%d of %d entry points have stand-ins, all by the right name; %s, CUDA %d.%d, %d MiB where NVML says %d", len(ours),
		len(theirs),
		said.Name, said.Driver/1000, said.Driver%1000/10, said.Memory>>20, gpu.MemoryBytes>>20)
}

// askCUDA runs a client to its end.
func askCUDA(cmd *exec.Cmd) (answer, error) {
	var said answer
	var out, complaint bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &complaint
	if err := cmd.Run(); err != nil {
		return said, fmt.Errorf("a CUDA client: %w: %s", err, strings.TrimSpace(complaint.String()))
	}
	return said, said.read(out.Bytes())
}

// read takes the last line that a client wrote.
func (a *answer) read(out []byte) error {
	lines := bytes.Split(bytes.TrimSpace(out), []byte("\n"))
	if err := json.Unmarshal(lines[len(lines)-1], a); err != nil {
		return fmt.Errorf("a CUDA client printed %q: %w", out, err)
	}
	if a.Step != "" {
		return fmt.Errorf("a CUDA client: %s: error %d", a.Step, a.Code)
	}
	return nil
}

// exports are the CUDA functions of a library.
func exports(path string) (map[string]bool, error) {
	f, err := elf.Open(path)
	if err != nil {
		return nil, err
	}
	symbols, err := f.DynamicSymbols()
	_ = f.Close() // only read from
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	names := map[string]bool{}
	for _, s := range symbols {
		if s.Section != elf.SHN_UNDEF && strings.HasPrefix(s.Name, "cu") {
			names[s.Name] = true
		}
	}
	return names, nil
}
