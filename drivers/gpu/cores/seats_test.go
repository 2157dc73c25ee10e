package cores

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"gpufabric.io/drivers/gpu/limiter"
)

const gpuA, gpuB = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"

func share(uuid string, percent int) limiter.Limit { return limiter.Limit{UUID: uuid, Cores: percent} }

func shares(uuid string, percent int) []limiter.Limit { return []limiter.Limit{share(uuid, percent)} }

// order reads a GPU's order: pages and percentages.
func order(t *testing.T, s *Seats, uuid string) (pages []string, percents []uint32, generation uint64) {
	t.Helper()
	content, err := os.ReadFile(filepath.Join(s.Directory, uuid, orderFile))
	if err != nil || len(content) != pageBytes {
		t.Fatalf("%d bytes (%v)", len(content), err)
	}
	for i := range int(binary.NativeEndian.Uint32(content[32:])) {
		entry := content[headBytes+i*entryBytes:]
		pages, percents = append(pages, string(entry[:nameBytes])), append(percents, binary.NativeEndian.Uint32(entry[nameBytes:]))
	}
	return pages, percents, binary.NativeEndian.Uint64(content[16:])
}

func open(t *testing.T, s *Seats, name string, limits ...limiter.Limit) {
	t.Helper()
	if err := s.Open(name, limits); err != nil {
		t.Fatal(err)
	}
}

func TestSeatsHaveOneOrderOnAllGPUs(t *testing.T) {
	s := &Seats{Directory: t.TempDir(), Lend: true}
	for i := range 20 {
		open(t, s, fmt.Sprintf("uid-%d_main", i), share(gpuA, i%3), share(gpuB, 5))
	}
	inB, _, _ := order(t, s, gpuB)
	inA, percents, _ := order(t, s, gpuA)
	if len(inB) != 20 || len(inA) != 13 {
		t.Fatalf("%d and %d seats, want 13 and 20: a limit of 0 is none", len(inA), len(inB))
	}
	at := 0
	for i, page := range inA {
		for at < len(inB) && inB[at] != page {
			at++
		}
		if at == len(inB) || percents[i] == 0 {
			t.Fatalf("page %s of %d %% is not behind those before it on the other GPU", page, percents[i])
		}
	}
}

func TestSeatsKeepAPageWhileItsContainerRuns(t *testing.T) {
	s := &Seats{Directory: t.TempDir()}
	open(t, s, "uid-1_main", share(gpuA, 30))
	open(t, s, "uid-2_main", share(gpuA, 40))
	mounts := s.Mounts("uid-1_main", []limiter.Limit{share(gpuA, 30)})
	if len(mounts) != 2 || mounts[0].Options[0] != "ro" || mounts[1].Options[0] != "rw" ||
		mounts[1].ContainerPath != "/usr/local/vgpu/cores.own/"+gpuA {
		t.Fatalf("mounts %+v", mounts)
	}
	page, err := os.OpenFile(mounts[1].HostPath, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = page.Close() }()
	if _, err := page.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(3*time.Second)), chargedAt); err != nil {
		t.Fatal(err)
	}
	again := &Seats{Directory: s.Directory} // a restart
	again.Resume(t.Context(), []string{"uid-1_main", "uid-3_main"}, func(name string) ([]limiter.Limit, error) {
		if name == "uid-3_main" {
			return nil, fs.ErrNotExist
		}
		return []limiter.Limit{share(gpuA, 30)}, nil
	})
	if had := again.Charged("uid-1_main", gpuA); had != 3*time.Second {
		t.Errorf("%s are charged after a restart, want 3 s", had)
	}
	if pages, _, _ := order(t, again, gpuA); len(pages) != 1 {
		t.Errorf("%d seats after a restart, of which one container is there", len(pages))
	}
	if err := again.Close("uid-1_main"); err != nil {
		t.Fatal(err)
	}
	if pages, _, _ := order(t, again, gpuA); len(pages) != 0 || again.Charged("uid-1_main", gpuA) != 0 {
		t.Errorf("%d seats after the last container", len(pages))
	}
	if err := again.Close("uid-1_main"); err != nil {
		t.Errorf("closed twice: %v", err)
	}
}

func TestSeatsOpenRefusesOneContainerTooManyOnAGPU(t *testing.T) {
	s := &Seats{Directory: t.TempDir()}
	for i := range most {
		open(t, s, fmt.Sprintf("uid-%d_main", i), share(gpuA, 1))
	}
	if err := s.Open("uid-x_main", []limiter.Limit{share(gpuA, 1)}); !errors.Is(err, ErrFull) {
		t.Errorf("one more: %v, want ErrFull", err)
	}
	if err := s.Close("uid-5_main"); err != nil {
		t.Fatal(err)
	}
	open(t, s, "uid-x_main", share(gpuA, 1))
}
