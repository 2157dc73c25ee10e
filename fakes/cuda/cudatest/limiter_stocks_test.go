package cudatest

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Programs look up the functions of their CUDA version, and some for those of the thread's own stream.
func everyLookup(t *testing.T, test func(t *testing.T, version, flags int)) {
	for _, c := range []struct{ version, flags int }{{11040, 0}, {12030, 0}, {12030, 2}, {13000, 0}} {
		t.Run(fmt.Sprintf("version %d flags %d", c.version, c.flags), func(t *testing.T) { test(t, c.version, c.flags) })
	}
}

func TestPoolsOfTwoProcessesKeepToTheShareOfTheirContainer(t *testing.T) {
	root, lib := node(t, "l40s-8")
	preload, _ := limited(t, lib, 1024)
	everyLookup(t, func(t *testing.T, version, flags int) {
		first, second := stocks(t, root, version, flags, preload), stocks(t, root, version, flags, preload)
		for _, c := range []*client{first, second} {
			c.saying("context 0", "0", "pool", "0")
		}
		first.saying(fmt.Sprintf("async %d", 600*mib), "0", "info", "0 424")
		second.saying(fmt.Sprintf("async %d", 426*mib), outOfMemory, fmt.Sprintf("from %d", 424*mib), "0", "info", "0 0",
			"freeasync", "0", "info", "0 0", // the pool has it still
			fmt.Sprintf("from %d", 424*mib), "0", "free", "0", "sync", "0", "info", "0 424")
		wantUsed(t, lib, "given back", 600)
		if err := first.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = first.cmd.Wait()
		second.saying(fmt.Sprintf("async %d", 1024*mib), "0", "alloc 1", outOfMemory)
	})
}

func TestGraphsKeepToTheShareOfTheirContainer(t *testing.T) {
	root, lib := node(t, "l40s-8")
	preload, _ := limited(t, lib, 1024)
	everyLookup(t, func(t *testing.T, version, flags int) {
		first, second := stocks(t, root, version, flags, preload), stocks(t, root, version, flags, preload)
		kind := "graph"
		if version >= 12030 {
			kind = "any" // by cuGraphAddNode_v2
		}
		first.saying("context 0", "0", kind+fmt.Sprintf(" 0 %d", 600*mib), "0", "instantiate 0", "0", "info", "0 1024", "launch 0", "0",
			"launch 0", "0", "info", "0 424")
		second.saying("context 0", "0", "capture", "0", fmt.Sprintf("async %d", 426*mib), "0", "freeasync", "0", "captured 0", "0",
			"instantiate 0", "0", "launch 0", outOfMemory, "upload 0", outOfMemory)
		wantUsed(t, lib, "refused", 600)
		first.saying("end 0", "0", "info", "0 424", "trimgraphs", "0", "info", "0 1024")
		second.saying("launch 0", "0", "info", "0 598", fmt.Sprintf("keeps 1 %d", 598*mib), "0", "instantiate 1", "0",
			"launch 1", "0", "info", "0 0")
		first.saying("instantiate 0", "0", "launch 0", outOfMemory)
		if err := second.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = second.cmd.Wait()
		first.saying("launch 0", "0", "info", "0 424")
	})
}

// Unused stock is given back before an allocation of another kind is refused.
func TestUnusedMemoryOfPoolsAndGraphsServesOtherAllocations(t *testing.T) {
	root, lib := node(t, "l40s-8")
	preload, _ := limited(t, lib, 1024)
	c := stocks(t, root, 12030, 0, preload)
	c.saying("context 0", "0", "default", "0", fmt.Sprintf("set 4 %d", 1024*mib), "0", fmt.Sprintf("async %d", 500*mib),
		"0", "free", "0", "sync", "0",
		fmt.Sprintf("graph 0 %d", 500*mib), "0", "instantiate 0", "0", "launch 0", "0", "sync", "0", "info", "0 24",
		fmt.Sprintf("alloc %d", 1024*mib), "0", "info", "0 0")
	wantUsed(t, lib, "given back", 1024)
}

func TestLimiterRefusesAPoolWithAnInvalidFile(t *testing.T) {
	root, lib := node(t, "l40s-8")
	preload, container := limited(t, lib, 1024)
	limits := filepath.Join(container, "limits")
	if err := os.Remove(limits); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(limits, []byte("unlimited\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := stocks(t, root, 12030, 0, preload)
	c.saying("context 0", "0", "pool", "0", "async 1", outOfMemory, "from 1", outOfMemory, "alloc 1", outOfMemory, "graph 0 1", "0",
		"instantiate 0", outOfMemory)
	wantUsed(t, lib, "refused", 0)
}

// A container's processes do not have their PIDs outside. NVML reports those.
func TestContextsAndModulesAreChargedByNVML(t *testing.T) {
	for name, namespaces := range map[string]uintptr{"the node's PIDs": 0, "PIDs of its own": syscall.CLONE_NEWUSER | syscall.CLONE_NEWPID} {
		t.Run(name, func(t *testing.T) {
			root, lib := node(t, "l40s-8")
			preload, container := limited(t, lib, 1024)
			libraries := "LD_LIBRARY_PATH=" + filepath.Join(root, "driver/usr/lib64")
			c := stocksCommand(t, root, 12030, 0, preload, libraries, "FAKEFABRIC_CONTEXT_MIB=300", "FAKEFABRIC_MODULE_MIB=20")
			if namespaces != 0 {
				c.cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: namespaces}
			}
			if err := c.start(); err != nil {
				if namespaces != 0 {
					t.Skipf("skipped: this user may make no PID namespace: %v", err)
				}
				t.Fatal(err)
			}
			other := stocks(t, root, 12030, 0, "FAKEFABRIC_CONTEXT_MIB=100") // in another container
			other.saying("primary 0", "0")
			c.saying("primary 0", "0", "info", "0 724", fmt.Sprintf("alloc %d", 724*mib), "0", "alloc 1", outOfMemory, "free 1", "0",
				fmt.Sprintf("alloc %d", 100*mib), "0", "kernel a_1us", "0", "info", "0 604")
			wantMemory(t, container, memory{Context: 300 * mib, Module: 20 * mib, Data: 100 * mib, Total: 420 * mib})
			c.saying("unload", "0", "info", "0 624")
			wantMemory(t, container, memory{Context: 300 * mib, Data: 100 * mib, Total: 400 * mib})
		})
	}
}

// memory is a process's memory on a GPU as monitors read it, in bytes.
type memory struct{ Context, Module, Data, Offset, Total uint64 }

// wantMemory reads it of the container's first process. The offset is that of region 1.2, in drivers/gpu/limiter/library/region.h.
func wantMemory(t *testing.T, container string, want memory) {
	t.Helper()
	file, err := os.Open(filepath.Join(container, "cudevshr.cache"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close() //nolint:errcheck // it is only read
	if _, err := file.Seek(1856+8, 0); err != nil {
		t.Fatal(err)
	}
	var got memory
	if err := binary.Read(file, binary.LittleEndian, &got); err != nil {
		t.Fatal(err)
	}
	if got != want {
		t.Errorf("monitors read %+v, want %+v", got, want)
	}
}
