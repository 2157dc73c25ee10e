package preflight

import (
	"cmp"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/version"

	"gpufabric.io/drivers/doctor/findings"
	"gpufabric.io/drivers/doctor/snapshot"
)

// oldestForDomains is the first driver that compute domains work with (see the compute domain plugin's minimumDriver).
const oldestForDomains = "570.158.01"

// machine is a node whose pod of the Job has reported.
type machine struct {
	node string
	Facts
}

// machines makes the checks that need the Job's results.
func machines(s *snapshot.Snapshot, v Values, namespace string, nodes []*corev1.Node) []Check {
	c := Check{Name: "machines"}
	if !s.Reads("pods") {
		return []Check{c.notSeen("pods cannot be listed, which carry what the Jobs of --print-jobs saw")}
	}
	if len(nodes) == 0 {
		return []Check{c.notSeen("no node is selected")}
	}
	by := readPodResults(s, namespace)
	var all []machine
	var silent []string
	for _, n := range nodes {
		switch t, has := by[n.Name]; {
		case t.facts != nil:
			all = append(all, machine{n.Name, *t.facts})
		case has:
			silent = append(silent, n.Name+" ("+t.why+")")
		default:
			silent = append(silent, n.Name)
		}
	}
	count := fmt.Sprintf("%d of %d nodes have reported their contents", len(all), len(nodes))
	switch {
	case len(all) == 0:
		c = c.notSeen("no node has reported its contents: gpufabric doctor preflight --print-jobs | kubectl create -f -, and ask again")
		if len(by) > 0 {
			c.Detail = count + "; not " + some(silent)
		}
		return []Check{c}
	case len(silent) > 0:
		c = c.notSeen(count + "; not " + some(silent))
	default:
		c = c.ok(count)
	}
	return slices.Concat([]Check{c}, driverChecks(all, v), []Check{runtimeConfiguration(all, v)}, rdmaChecks(all, v), unread(all))
}

// unread names the parts of their nodes that pods could not read: the other checks do not cover it.
func unread(all []machine) []Check {
	var found []string
	for _, m := range all {
		if len(m.Unread) > 0 {
			found = append(found, m.node+" ("+m.Unread[0]+")")
		}
	}
	if len(found) == 0 {
		return nil
	}
	return []Check{Check{Name: "unread on nodes"}.notSeen(some(found))}
}

// of returns the machines for which bad returns a text.
func of(all []machine, name, good string, result Result, code string, bad func(machine) string) Check {
	var found []string
	for _, m := range all {
		if why := bad(m); why != "" {
			found = append(found, m.node+" ("+why+")")
		}
	}
	c := Check{Name: name}
	if len(found) > 0 {
		return c.is(result, code, some(found))
	}
	return c.ok(good)
}

// driverChecks check NVIDIA's driver where an enabled component needs it.
func driverChecks(all []machine, v Values) []Check {
	if !v.useGPUs() {
		return nil
	}
	driver := troubles(all)
	if driver.Result == OK && v.Domains.Enabled {
		if old := of(all, driver.Name, driver.Detail, Fails, "DriverTooOld", tooOld); old.Result != OK {
			driver = old
		}
	}
	checks := []Check{driver, acrossNodes(all), of(all, "GPU device nodes", "as many as GPUs on the PCI bus", Warning, "GPUsIncomplete",
		func(m machine) string {
			if m.Driver != "" && m.Nodes < m.GPUs {
				return fmt.Sprintf("%d GPUs, %d of /dev/nvidia0 and its like", m.GPUs, m.Nodes)
			}
			return ""
		})}
	if v.Domains.Enabled {
		checks = append(checks, of(all, "IMEX channels", "the driver makes them", Warning, "NoIMEXChannels", func(m machine) string {
			if m.Driver != "" && m.GPUs > 0 && m.Channels == 0 {
				return "none"
			}
			return ""
		}))
	}
	return checks
}

// troubles is the check of the driver itself. Nodes without a GPU need none.
func troubles(all []machine) Check {
	c := Check{Name: "NVIDIA's driver"}
	gpus := 0
	var found []string
	code := ""
	for _, m := range all {
		if m.GPUs == 0 && m.Driver == "" {
			continue
		}
		gpus++
		if m.Trouble == "" {
			continue
		}
		// An unknown code was not written by the Job.
		if _, known := findings.Find(m.Trouble); known && code == "" {
			code = m.Trouble
		}
		found = append(found, m.node+" ("+cmp.Or(m.Says, m.Trouble)+")")
	}
	switch {
	case len(found) > 0:
		return c.is(Fails, cmp.Or(code, "DriverFailed"), some(found))
	case gpus == 0:
		return c.is(Warning, "DriverNotFound", "no node has an NVIDIA GPU on its PCI bus")
	}
	return c.ok(fmt.Sprintf("there and loaded on %d nodes", gpus))
}

func tooOld(m machine) string {
	v, err := version.ParseGeneric(m.Driver)
	if err == nil && v.LessThan(version.MustParseGeneric(oldestForDomains)) {
		return m.Driver + "; compute domains need " + oldestForDomains
	}
	return ""
}

// acrossNodes compares the drivers' versions.
func acrossNodes(all []machine) Check {
	c := Check{Name: "driver versions"}
	by := map[string][]string{}
	for _, m := range all {
		if m.Driver != "" {
			by[m.Driver] = append(by[m.Driver], m.node)
		}
	}
	versions := slices.Sorted(maps.Keys(by))
	switch len(versions) {
	case 0:
		return c.notSeen("no node has loaded a driver")
	case 1:
		return c.ok(versions[0])
	}
	var texts []string
	for _, v := range versions {
		texts = append(texts, fmt.Sprintf("%s on %s", v, some(by[v])))
	}
	return c.is(Warning, "DriverVersionsAcrossNodes", some(texts))
}

// runtimeConfiguration separates machines whose container runtime reads CDI specs, machines where it does not, and machines whose
// configuration was not read.
func runtimeConfiguration(all []machine, v Values) Check {
	c := of(all, "runtime configuration", "", Fails, "ContainerRuntimeReadsNoCDI", func(m machine) string {
		switch {
		case m.CDI == "off":
			return cmp.Or(m.CDIWhy, "CDI is off")
		case m.CDI == "on" && len(m.SpecDirs) > 0 && !slices.ContainsFunc(m.SpecDirs, v.isCDIRoot):
			return fmt.Sprintf("cdi_spec_dirs is %s, without cdi.root %s", strings.Join(m.SpecDirs, ", "), v.CDI.Root)
		}
		return ""
	})
	if c.Result != OK {
		return c
	}
	var unseen, on []string
	for _, m := range all {
		if m.CDI == "" {
			unseen = append(unseen, m.node+" ("+cmp.Or(m.Runtime, "its runtime is not known")+")")
		} else {
			on = append(on, m.node)
		}
	}
	if len(unseen) > 0 {
		return c.notSeen(fmt.Sprintf("CDI is on on %d nodes; no configuration was seen in %s on %s", len(on),
			strings.Join(v.preset.Runtimes, ", "), some(unseen)))
	}
	c.Detail = fmt.Sprintf("CDI is on, with %s among its directories", v.CDI.Root)
	if v.RDMA.Enabled {
		c = of(all, c.Name, c.Detail, Warning, "NotExclusive", func(m machine) string {
			if m.NRI == "off" {
				return "NRI is off, and RDMA claims with network: Exclusive need it"
			}
			return ""
		})
	}
	return c
}

// isCDIRoot reports whether a directory is the chart's cdi.root. /var/run is a link to /run.
func (v Values) isCDIRoot(directory string) bool {
	whole := func(d string) string { return strings.TrimPrefix(path.Clean(d), "/var/run/") }
	return strings.TrimPrefix(whole(directory), "/run/") == strings.TrimPrefix(whole(v.CDI.Root), "/run/")
}

// rdmaChecks check RDMA devices where RDMA is on.
func rdmaChecks(all []machine, v Values) []Check {
	if !v.RDMA.Enabled {
		return nil
	}
	devices := 0
	for _, m := range all {
		devices += m.RDMA
	}
	c := of(all, "RDMA devices", fmt.Sprintf("%d on %d nodes", devices, len(all)), Warning, "NoMatchingDevices", func(m machine) string {
		if m.Mellanox > 0 && m.RDMA == 0 {
			return "Mellanox's PCI functions, and no RDMA device: load mlx5_ib"
		}
		return ""
	})
	if c.Result == OK && devices == 0 {
		c = c.is(Warning, "NoMatchingDevices", "no node has an RDMA device")
	}
	return []Check{c}
}
