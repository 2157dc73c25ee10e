package offer_test

import (
	"crypto/sha256"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/rdma/offer"
	"gpufabric.io/drivers/rdma/pool"
)

func TestALayoutOutlivesARestart(t *testing.T) {
	dir := t.TempDir()
	store, err := offer.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	if kept, err := store.Load("rdma/a"); !cmp.Equal(kept, offer.Kept{}) || err != nil {
		t.Errorf("without a file: got %v, %v", kept, err)
	}
	want := offer.Kept{
		Boot: "b1", Units: pool.Layout{"0000:3b:00.0", "0000:5e:00.0"},
		Pool: v1alpha1.RDMAPoolConfig{ResourceName: "a", RDMAHCAMax: 2, Selectors: &v1alpha1.RDMASelectors{Vendors: []string{"15b3"}}},
	}
	if err := store.Save("rdma/a", want); err != nil {
		t.Fatal(err)
	}
	store, err = offer.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	got, err := store.Load("rdma/a")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestAFileOfVersion1HoldsTheUnitsAlone(t *testing.T) {
	dir := t.TempDir()
	body := `["0000:3b:00.0"]`
	if err := os.WriteFile(filepath.Join(dir, "rdma_a.layout"), fmt.Appendf(nil, "gpufabric-layout 1 sha256:%x\n%s\n",
		sha256.Sum256([]byte(body)), body), 0o640); err != nil {
		t.Fatal(err)
	}
	store, err := offer.OpenStore(dir) // files are read at the start
	if err != nil {
		t.Fatal(err)
	}
	got, err := store.Load("rdma/a")
	if want := (offer.Kept{Units: pool.Layout{"0000:3b:00.0"}}); err != nil || !cmp.Equal(want, got) {
		t.Errorf("got %v, %v", got, err)
	}
}

func TestADamagedFileIsSetAside(t *testing.T) {
	for _, test := range []struct {
		name   string
		damage func([]byte) []byte
		reason string
	}{
		{"empty", func([]byte) []byte { return nil }, "no header line"},
		{"cut off", func(b []byte) []byte { return b[:len(b)-5] }, "checksum"},
		{"changed", func(b []byte) []byte { return []byte(strings.Replace(string(b), "0000:3b", "0000:3c", 1)) }, "checksum"},
		{"of a later version", func(b []byte) []byte { return []byte(strings.Replace(string(b), "layout 2", "layout 3", 1)) }, "newer version"},
	} {
		t.Run(test.name, func(t *testing.T) {
			dir := t.TempDir()
			store, err := offer.OpenStore(dir)
			if err != nil {
				t.Fatal(err)
			}
			if err := store.Save("rdma/a", offer.Kept{Units: pool.Layout{"0000:3b:00.0"}}); err != nil {
				t.Fatal(err)
			}
			path := filepath.Join(dir, "rdma_a.layout")
			content, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, test.damage(content), 0o640); err != nil {
				t.Fatal(err)
			}
			if store, err = offer.OpenStore(dir); err != nil {
				t.Fatal(err)
			}
			if kept, err := store.Load("rdma/a"); kept.Units != nil || err == nil || !strings.Contains(err.Error(), test.reason) {
				t.Errorf("got %v, %v", kept, err)
			}
			if kept, err := store.Load("rdma/a"); kept.Units != nil || err != nil {
				t.Errorf("the second time: got %v, %v", kept, err)
			}
			if _, err := os.Stat(filepath.Join(dir, "unreadable/rdma_a.layout")); err != nil {
				t.Error(err)
			}
		})
	}
}

// A file as version 0.2 wrote it, byte for byte: its checksum leaves out the newline at the end. What is written now has no newline
// there, so that version can read it.
func TestALayoutOfTheVersionBeforeIsRead(t *testing.T) {
	before, err := os.ReadFile("testdata/rdma_a-0.2.layout")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "rdma_a.layout")
	if err := os.WriteFile(path, before, 0o640); err != nil {
		t.Fatal(err)
	}
	store, err := offer.OpenStore(dir)
	if err != nil {
		t.Fatal(err)
	}
	kept, err := store.Load("rdma/a")
	if want := (pool.Layout{"0000:3b:00.0", "0000:5e:00.0"}); err != nil || kept.Boot != "b1" || !cmp.Equal(want, kept.Units) {
		t.Fatalf("got %v, %v", kept, err)
	}
	kept.Boot = "b2"
	if err := store.Save("rdma/a", kept); err != nil {
		t.Fatal(err)
	}
	after, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	line, body, _ := strings.Cut(string(after), "\n")
	if want := fmt.Sprintf("gpufabric-layout 2 sha256:%x", sha256.Sum256([]byte(strings.TrimSuffix(body, "\n")))); line != want {
		t.Errorf("version 0.2 wants the first line %q, it is %q", want, line)
	}
}
