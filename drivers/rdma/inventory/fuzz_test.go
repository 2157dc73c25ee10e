package inventory_test

import (
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/rdma/inventory"
)

// entriesOf lists the files and links of a tree that do not belong to the second HCA, in order.
func entriesOf(t testing.TB, root string) []string {
	var found []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		target := path
		if d.Type()&fs.ModeSymlink != 0 {
			if target, err = filepath.EvalSymlinks(path); err != nil {
				return err
			}
		}
		if !strings.Contains(target, "pci0000:5d") {
			found = append(found, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(found)
	return found
}

// FuzzReadLosesOnlyDamagedDevice damages any one file or link of an HCA in any way: it is removed, truncated, or has other
// content. The other HCA must be served in any case. The damaged one is either served or skipped with a reason.
func FuzzReadLosesOnlyDamagedDevice(f *testing.F) {
	// About as many as the tree has; each once removed, truncated to nothing and to one byte, and with garbage
	for which := range uint16(90) {
		f.Add(which, uint8(0), []byte(nil))
		f.Add(which, uint8(1), []byte(nil))
		f.Add(which, uint8(2), []byte(nil))
		f.Add(which, uint8(200), []byte("\xff\x00garbage 0x99999999999999999999:\n"))
	}
	// One tree for all: making one takes a hundred times as long as reading it. The damage is repaired afterwards.
	tree := sysfstest.New(f)
	tree.AddHCA(sysfstest.HCA{Function: first, Nets: []string{"ibp59s0"}})
	tree.AddHCA(sysfstest.HCA{Function: second, Nets: []string{"ibp94s0"}})
	entries := entriesOf(f, tree.Sys)
	saved := filepath.Join(f.TempDir(), "saved")
	f.Fuzz(func(t *testing.T, which uint16, how uint8, content []byte) {
		entry := entries[int(which)%len(entries)]
		old, err := os.ReadFile(entry)
		if err != nil {
			old = nil // A link to a directory, which becomes an empty file.
		}
		if err := os.Rename(entry, saved); err != nil {
			t.Fatal(err)
		}
		defer func() {
			if err := os.Rename(saved, entry); err != nil {
				t.Fatal(err)
			}
		}()
		if how > 0 {
			if how < 100 {
				content = old[:min(int(how)-1, len(old))]
			}
			if err := os.WriteFile(entry, content, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		found, err := inventory.Discover(t.Context(), inventory.Roots{Sysfs: tree.Sys})
		if err != nil {
			t.Fatalf("%s: %v", entry, err)
		}
		names := names(found)
		if !slices.Contains(names, "mlx5_1") {
			t.Errorf("%s cost the other HCA: found %v, skipped %+v", entry, names, found.Skipped)
		}
		for _, s := range found.Skipped {
			if s.Reason == "" || s.Name == "" {
				t.Errorf("%s: skipped without a reason: %+v", entry, s)
			}
		}
		if !slices.Contains(names, "mlx5_0") && len(found.Skipped) == 0 && !strings.Contains(entry, "class/infiniband/mlx5_0") {
			t.Errorf("%s: the damaged HCA is neither found nor skipped", entry)
		}
	})
}
