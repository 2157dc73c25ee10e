package alignment_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"gpufabric.io/drivers/fabric"
	"gpufabric.io/drivers/fabric/topology"
)

// TestNCCLFileHasThePCITree compares with files that were checked by hand against the profiles' PCI bridges.
// GPUFABRIC_UPDATE=1 writes them.
func TestNCCLFileHasThePCITree(t *testing.T) {
	for _, name := range []string{"h100-hgx", "gb200-nvl72"} {
		facts := &fabric.Facts{}
		for _, slice := range newMachine(t, name, readExample(t)).slices {
			facts.Slices = append(facts.Slices, fabric.OfSlice(slice))
		}
		picture := fabric.Draw(facts)
		var got strings.Builder
		if err := topology.WriteNCCL(&got, &picture.Racks[0].Nodes[0]); err != nil {
			t.Fatal(err)
		}
		path := filepath.Join("testdata", name+".xml")
		if os.Getenv("GPUFABRIC_UPDATE") != "" {
			if err := os.WriteFile(path, []byte(got.String()), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if got.String() != string(want) {
			t.Errorf("%s:\n%s\nwant\n%s", name, got.String(), want)
		}
	}
}
