package cudatest

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const (
	invalid     = "1"
	outOfMemory = "2"
	mib         = 1 << 20
)

// stocks runs testdata/stocks, which looks up the functions of a CUDA version; flags 2 looks up those of the thread's own stream.
func stocks(t *testing.T, root string, version, flags int, env ...string) *client {
	t.Helper()
	c := stocksCommand(t, root, version, flags, env...)
	if err := c.start(); err != nil {
		t.Fatal(err)
	}
	return c
}

func stocksCommand(t *testing.T, root string, version, flags int, env ...string) *client {
	t.Helper()
	c := &client{t: t, cmd: exec.CommandContext(t.Context(), compiled(t, "stocks"), filepath.Join(root, "driver/usr/lib64/libcuda.so.1"),
		fmt.Sprint(version), fmt.Sprint(flags))}
	c.cmd.Env = append(os.Environ(), env...)
	return c
}

// saying is a list of commands, each with its answer.
func (c *client) saying(dialogue ...string) {
	c.t.Helper()
	for i := 0; i < len(dialogue); i += 2 {
		c.say(dialogue[i], dialogue[i+1])
	}
}

func wantUsed(t *testing.T, lib nvml.Interface, when string, want uint64) {
	t.Helper()
	if used, _ := usedMiB(t, lib, 0); used != want {
		t.Errorf("%s: %d MiB of the GPU are in use, want %d", when, used, want)
	}
}

// "reserved" answers with MiB: reserved by the pool, its maximum, used, its maximum; the same of graphs.
func TestPoolReleasesMemoryAboveItsThreshold(t *testing.T) {
	root, lib := node(t, "l40s-8")
	c := stocks(t, root, 12030, 0)
	c.saying("context 0", "0", "default", "0", fmt.Sprintf("async %d", 3*mib), "0")
	wantUsed(t, lib, "granules of 2 MiB", 4)
	c.saying(fmt.Sprintf("async %d", mib), "0", "reserved", "4 4 4 4 0 0 0 0", "freeasync", "0", "freeasync 1", "0",
		"reserved", "4 4 0 4 0 0 0 0",
		"trim 0", "0", "reserved", "4 4 0 4 0 0 0 0") // the free was not seen to be over
	wantUsed(t, lib, "freed", 4)
	c.saying("sync", "0", "reserved", "0 4 0 4 0 0 0 0", "set 6 0", "0", "set 8 0", "0", "reserved", "0 0 0 0 0 0 0 0")
	wantUsed(t, lib, "synchronized", 0)

	c.saying(fmt.Sprintf("set 4 %d", 6*mib), "0", fmt.Sprintf("async %d", 10*mib), "0", "free", "0", "sync", "0",
		"reserved", "6 10 0 10 0 0 0 0",
		fmt.Sprintf("async %d", 6*mib), "0", "reserved", "6 10 6 10 0 0 0 0", "free", "0", "trim 0", "0", "reserved", "0 10 0 10 0 0 0 0")
	wantUsed(t, lib, "trimmed", 0)

	c.saying("pool", "0", "use 0", "0", fmt.Sprintf("async %d", 8*mib), "0", "drop", "0")
	wantUsed(t, lib, "a pool that is destroyed, with an allocation", 8)
	c.saying("freeasync", "0", "default", "0", fmt.Sprintf("async %d", 2*mib), "0", "reserved",
		"2 10 2 10 0 0 0 0") // the current pool is the default one again
	wantUsed(t, lib, "the last one is freed", 2)
}

func TestPoolsRejectLikeDriver(t *testing.T) {
	root, _ := node(t, "l40s-8")
	c := stocks(t, root, 12030, 0)
	c.saying("context 0", "0", "default", "0", "drop", invalid, "use 1", invalid, "async 0", invalid, "set 5 0", invalid, "set 6 1", invalid,
		"set 9 0", invalid, fmt.Sprintf("async %d", 1<<40), outOfMemory, "pool", "0", "use 1", invalid, "drop", "0", "drop",
		invalid, "trim 0", invalid,
		"from 1", invalid, "async 512", "0", "freeasync", "0", "freeasync", invalid, "free", invalid)
}

func TestGraphTakesItsMemoryWhenItIsLaunched(t *testing.T) {
	root, lib := node(t, "l40s-8")
	c := stocks(t, root, 12030, 0)
	c.saying("context 0", "0", "default", "0", fmt.Sprintf("graph 0 %d", 100*mib), "0", "instantiate 0", "0")
	wantUsed(t, lib, "instantiated", 0)
	c.saying("upload 0", "0", "reserved", "0 0 0 0 100 100 100 100", "launch 0", "0", "launch 0", "0")
	wantUsed(t, lib, "launched", 100)
	c.saying(fmt.Sprintf("any 1 %d", 60*mib), "0", "instantiate 1", "0", "launch 1", "0")
	wantUsed(t, lib, "a second one, which shares that", 100)
	c.saying(fmt.Sprintf("keeps 2 %d", 30*mib), "0", "instantiate 2", "0", "launch 2", "0", "reserved", "0 0 0 0 130 130 130 130",
		"launch 2", invalid, // its allocation was not freed
		"end 0", "0", "end 1", "0", "reserved", "0 0 0 0 130 130 130 130", "trimgraphs", "0", "reserved", "0 0 0 0 30 130 30 130")
	wantUsed(t, lib, "trimmed", 30)
	c.saying("freeasync", "0", "launch 2", "0", "free", "0", "free", invalid, "end 2", "0", "trimgraphs", "0",
		"setgraphs 1 0", "0", "setgraphs 3 0", "0",
		"reserved", "0 0 0 0 0 0 0 0")
	wantUsed(t, lib, "freed and trimmed", 0)

	// A kernel that runs keeps its graph's memory. On a busy machine a short one may have run before it is looked at.
	for takes, kept := 200, uint64(0); kept == 0; takes *= 4 {
		c.saying("capture", "0", fmt.Sprintf("async %d", 10*mib), "0", fmt.Sprintf("kernel busy_%dms", takes), "0", "freeasync", "0",
			"captured 3", "0", "instantiate 3", "0", "launch 3", "0", "trimgraphs", "0")
		kept, _ = usedMiB(t, lib, 0)
		if kept != 10 && (kept != 0 || takes > 60_000) {
			t.Fatalf("trimmed while it runs: %d MiB of the GPU are in use, want 10", kept)
		}
		c.saying("sync", "0", "trimgraphs", "0", "end 3", "0")
		wantUsed(t, lib, "trimmed when it has run", 0)
	}

	// One frees what the other has allocated; with the flag, a launch frees what the last one left.
	c.saying(fmt.Sprintf("keeps 4 %d", 4*mib), "0", "frees 5", "0", "instantiate 4", "0", "instantiate 5", "0", "launch 4",
		"0", "launch 5", "0",
		"launch 4", "0", "end 4", "0", "instantiate 4 1", "0", "launch 4", "0", "launch 4", "0", "free", "0", "trimgraphs", "0")
	wantUsed(t, lib, "freed by another graph", 0)
}

func TestGraphsRejectLikeDriver(t *testing.T) {
	root, lib := node(t, "l40s-8")
	c := stocks(t, root, 12030, 0)
	c.saying("context 0", "0", "default", "0", "graph 0 0", invalid, fmt.Sprintf("graph 1 %d", mib), "0", "frees 1",
		invalid, "frees 2", invalid,
		"instantiate 1", "0", "instantiate 1", invalid, "instantiate 1 16", invalid, "setgraphs 0 0", invalid, "setgraphs 2 0", invalid,
		"setgraphs 1 1", invalid, fmt.Sprintf("graph 3 %d", 1<<40), "0", "instantiate 3", "0", "launch 3", outOfMemory, "upload 3", outOfMemory)
	wantUsed(t, lib, "refused", 0)
	c.saying(fmt.Sprintf("alloc %d", mib), "0", "capture", "0", "freeasync", invalid, // only what a graph has allocated
		"captured 4", "0")
}

func TestContextsAndModulesTakeMemoryOfEnvironment(t *testing.T) {
	root, lib := node(t, "l40s-8")
	c := stocks(t, root, 12030, 0, "FAKEFABRIC_CONTEXT_MIB=300", "FAKEFABRIC_MODULE_MIB=20")
	c.saying("context 0", "0")
	wantUsed(t, lib, "a context", 300)
	c.saying("kernel a_1us", "0")
	wantUsed(t, lib, "a module", 320)
	c.saying("unload", "0")
	wantUsed(t, lib, "unloaded", 300)
	c.saying("kernel a_1us", "0", "destroy", "0")
	wantUsed(t, lib, "destroyed, with a module", 0)
	c.saying("primary 0", "0", "primary 0", "0")
	wantUsed(t, lib, "a primary context", 300)
}

func TestCaptureIsOverWhenItsThreadMakesAnUnsafeCall(t *testing.T) {
	const unsupported, invalidated = "900", "901"
	root, _ := node(t, "l40s-8")
	unsafe := fmt.Sprintf("alloc %d", mib)
	for _, c := range []struct{ name, mode, own, call, end string }{
		{"global", "0", "0", unsupported, invalidated}, {"of the thread", "1", "0", unsupported, invalidated},
		{"relaxed", "2", "0", "0", "0"}, {"the thread takes itself out", "0", "2", "0", "0"},
	} {
		t.Run(c.name, func(t *testing.T) {
			program := stocks(t, root, 12030, 0)
			program.saying("context 0", "0", "capture "+c.mode, "0", "exchange "+c.own, "0", unsafe, c.call, "captured 0", c.end, unsafe, "0")
		})
	}
}
