package fault

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"gpufabric.io/fakes/imex"
	"gpufabric.io/fakes/state"
)

// infiniband is the directory of the device that the argument names.
func (c *change) infiniband() (string, error) {
	class := filepath.Join(c.root, "sys/class/infiniband")
	entries, err := os.ReadDir(class)
	if err != nil {
		return "", refuse("the node has no InfiniBand devices")
	}
	var names []string
	for _, e := range entries {
		if e.Name() == c.args["device"] {
			return filepath.Join(class, e.Name()), nil
		}
		names = append(names, e.Name())
	}
	return "", refuse("there is no device %q; the node has %s", c.args["device"], strings.Join(names, ", "))
}

// port changes a port's link, in the files of the device and of its network interface.
func port(up bool) func(*change) error {
	return func(c *change) error {
		dir, err := c.infiniband()
		if err != nil {
			return err
		}
		texts := map[string]string{"state": "1: DOWN\n", "phys_state": "2: Polling\n"}
		if layer, _ := os.ReadFile(filepath.Join(dir, "ports/1/link_layer")); strings.TrimSpace(string(layer)) == "Ethernet" {
			texts["phys_state"] = "3: Disabled\n" // drivers/infiniband/hw/mlx5/main.c, mlx5_query_port_roce
		}
		oper, carrier := "down\n", "0\n"
		if up {
			texts = map[string]string{"state": "4: ACTIVE\n", "phys_state": "5: LinkUp\n"}
			oper, carrier = "up\n", "1\n"
		}
		uplink, err := uplink(dir)
		if err != nil {
			return err
		}
		now, err := os.ReadFile(filepath.Join(dir, uplink, "state"))
		if err != nil {
			return err
		}
		if string(now) == texts["state"] {
			return refuse("port %s of %s is %s already", filepath.Base(uplink), c.args["device"], strings.TrimSpace(string(now)))
		}
		for name, text := range texts {
			if err := c.replace(filepath.Join(dir, uplink, name), text); err != nil {
				return err
			}
		}
		if !up {
			if err := c.count(filepath.Join(dir, uplink, "counters/link_downed")); err != nil {
				return err
			}
		}
		netdevs, err := filepath.Glob(filepath.Join(dir, "device/net/*"))
		for _, n := range netdevs {
			if name, _ := os.ReadFile(filepath.Join(n, "phys_port_name")); strings.Contains(string(name), "pf") {
				continue // a representor, whose carrier is that of its virtual function
			}
			err = errors.Join(err, c.replace(filepath.Join(n, "operstate"), oper), c.replace(filepath.Join(n, "carrier"), carrier))
		}
		return err
	}
}

// uplink is the directory of the port that has the cable, below an RDMA device's: the only one, or the last in switchdev mode.
func uplink(dir string) (string, error) {
	entries, err := os.ReadDir(filepath.Join(dir, "ports"))
	last := 1
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			last = max(last, n)
		}
	}
	return filepath.Join("ports", strconv.Itoa(last)), err
}

// count adds one to a counter's file.
func (c *change) count(path string) error {
	data, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	return c.replace(path, fmt.Sprintf("%d\n", n+1))
}

func firmware(c *change) error {
	dir, err := c.infiniband()
	if err != nil {
		return err
	}
	v := c.args["version"]
	if v == "" || strings.ContainsAny(v, "\n/") {
		return fmt.Errorf("version is %q, want text like 28.45.1200", v)
	}
	return c.replace(filepath.Join(dir, "fw_ver"), v+"\n")
}

// faults changes the file that the node's IMEX daemon reads its faults from.
func (c *change) faults(fn func(*imex.Faults)) error {
	if _, err := os.Stat(filepath.Join(c.root, "proc/driver/nvidia/capabilities/fabric-imex-mgmt")); err != nil {
		return refuse("the node has no IMEX")
	}
	path := filepath.Join(filepath.Dir(state.Path(c.root)), imex.FaultsName)
	f, err := imex.ReadFaults(path)
	if err != nil {
		return err
	}
	fn(&f)
	return imex.WriteFaults(path, f)
}

func imexKill(c *change) error {
	return c.faults(func(f *imex.Faults) { f.Kills++ })
}

func imexPartition(c *change) error {
	return c.faults(func(f *imex.Faults) { f.Partitioned = strings.Split(c.args["peers"], ",") })
}

func imexFail(c *change) error {
	return c.faults(func(f *imex.Faults) { f.Failures++ })
}

func imexSilence(c *change) error {
	who := c.args["questions"]
	switch who {
	case "-N", "*":
	case "none":
		who = ""
	default:
		return fmt.Errorf("questions is %q; allowed are -N, * and none", who)
	}
	return c.faults(func(f *imex.Faults) { f.Silent = who })
}

func imexHeal(c *change) error {
	return c.faults(func(f *imex.Faults) { f.Partitioned, f.Silent = nil, "" })
}
