package plugin

import (
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr/funcr"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/sysfstest"
	"gpufabric.io/drivers/rdma/inventory"
	"gpufabric.io/drivers/rdma/pool"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// healthy are the trees of healthy machines, by name: those of all profiles, and one with a drive below Intel VMD and a card whose second
// function has no RDMA device (RoCE LAG).
func healthy(t *testing.T) map[string]string {
	t.Helper()
	roots := map[string]string{}
	for _, name := range profile.Names() {
		p, err := profile.Load(name)
		if err != nil {
			t.Fatal(err)
		}
		roots[name] = t.TempDir()
		if err := tree.Render(t.Context(), tree.Options{Profile: p, Root: roots[name], PlainDevices: true}); err != nil {
			t.Fatal(err)
		}
	}
	nested := sysfstest.New(t)
	const parent, vmd = "pci0000:3a/0000:3a:00.0", "pci0000:17/0000:17:05.5/pci10000:00"
	nested.AddHCA(sysfstest.HCA{Function: sysfstest.Function{Parent: parent, Address: "0000:3b:00.0"}, Ethernet: true,
		Nets: []string{"ens2f0"}})
	nested.AddFunction(sysfstest.Function{Parent: parent, Address: "0000:3b:00.1"})
	nested.AddFunction(sysfstest.Function{Parent: "pci0000:17", Address: "0000:17:05.5", Vendor: "0x8086", Class: "0x010400", Driver: "vmd"})
	nested.AddFunction(sysfstest.Function{Parent: vmd + "/10000:00:02.0", Address: "10000:01:00.0", Vendor: "0x144d", Class: "0x010802",
		Driver: "nvme"})
	roots["VMD and LAG"] = filepath.Dir(nested.Sys)
	return roots
}

func TestPluginDiscoversAHealthyMachineOnceWithoutErrors(t *testing.T) {
	for name, root := range healthy(t) {
		synctest.Test(t, func(t *testing.T) {
			nodes := inventory.DeviceNodes{Dev: driver.Here(filepath.Join(root, "dev")), Sysfs: filepath.Join(root, "sys")}
			scan(t, &sysfstest.Tree{Sys: nodes.Sysfs}, func(s *scanner) {
				s.Ask()
				d := <-s.found
				if d.err != nil {
					t.Fatalf("%s: %v", name, d.err)
				}
				select {
				case <-s.found:
					t.Errorf("%s: a second discovery that no event asked for", name)
				case <-time.After(10 * time.Minute):
				}
				log := funcr.New(func(_, line string) {
					if !strings.Contains(line, `"level"=`) {
						t.Errorf("%s: an error is logged: %s", name, line)
					}
				}, funcr.Options{})
				selection := pool.Select([]pool.Definition{{Source: "test", RDMAPoolConfig: v1alpha1.RDMAPoolConfig{ResourceName: "hca", RDMAHCAMax: 8,
					Selectors: &v1alpha1.RDMASelectors{Vendors: []string{"15b3"}}}}}, d.devices)
				var j journal
				j.write(log, picture{devicePlugin: true, devices: d.devices, selection: selection}, watchedPorts(d.devices, nodes)...)
			})
		})
	}
}
