// Package config reads the RDMA plugin's config.json: the format of k8s-rdma-shared-dev-plugin, with the additions of
// RDMAPoolConfig.
//
// Unlike that plugin's reader it reports all mistakes at once, each with its JSON path and line, and refuses unknown keys.
package config

import (
	"bytes"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation/field"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
)

// DefaultFile is where k8s-rdma-shared-dev-plugin looks, and where existing DaemonSets mount the ConfigMap.
const DefaultFile = "/k8s-rdma-shared-dev-plugin/config.json"

// defaultInterval is periodicUpdateInterval where the file has none.
const defaultInterval = 60 * time.Second

// maxBytes bounds the file: a ConfigMap holds at most 1 MiB.
const maxBytes = 1 << 20

// Config is a valid config.json.
type Config struct {
	// Rescan is periodicUpdateInterval: how often devices are discovered again without an event; 0: only after events.
	Rescan time.Duration
	// Pools are the entries of configList that can be served.
	Pools []v1alpha1.RDMAPoolConfig
	// Entries are the positions of Pools in configList.
	Entries []int
}

// Keep adds pools of an earlier configuration that have no successor here: an entry with mistakes must not remove a pool from the
// node.
func (c *Config) Keep(earlier *Config) {
	for i, old := range earlier.Pools {
		if !slices.ContainsFunc(c.Pools, func(p v1alpha1.RDMAPoolConfig) bool { return p.Resource() == old.Resource() }) {
			c.Pools, c.Entries = append(c.Pools, old), append(c.Entries, earlier.Entries[i])
		}
	}
}

// sound returns the configuration without its entries that have mistakes. It returns nil where the list itself has a mistake, or no
// entry is left. Mistakes elsewhere, in periodicUpdateInterval or an unknown key, do not affect the entries.
func (c *Config) sound(problems Error) *Config {
	mistaken := make(map[int]bool)
	for _, p := range problems {
		if p.Path != "" && p.Path != "configList" && !strings.HasPrefix(p.Path, "configList[") {
			continue
		}
		rest, found := strings.CutPrefix(p.Path, "configList[")
		number, _, closed := strings.Cut(rest, "]")
		i, err := strconv.Atoi(number)
		if !found || !closed || err != nil {
			return nil
		}
		mistaken[i] = true
	}
	kept := &Config{Rescan: c.Rescan}
	for i, p := range c.Pools {
		if !mistaken[i] {
			kept.Pools, kept.Entries = append(kept.Pools, p), append(kept.Entries, i)
		}
	}
	if len(kept.Pools) == 0 {
		return nil
	}
	return kept
}

// Problem is one mistake in a file.
type Problem struct {
	Path    string // configList[0].selectors.vendors[1]; empty: the document itself
	Line    int    // counted from 1; 0: unknown
	Message string
}

// String returns the problem as one line of text.
func (p Problem) String() string {
	var text strings.Builder
	if p.Path != "" {
		text.WriteString(p.Path)
	}
	if p.Line > 0 {
		if p.Path != "" {
			text.WriteByte(' ')
		}
		fmt.Fprintf(&text, "(line %d)", p.Line)
	}
	if text.Len() > 0 {
		text.WriteString(": ")
	}
	return text.String() + p.Message
}

// Error is every mistake in a file, in the order of the lines.
type Error []Problem

// Error lists the problems, one a line.
func (e Error) Error() string {
	lines := make([]string, len(e))
	for i, p := range e {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

// Parse reads a config.json. The error is an Error with every mistake in it. Where only entries of configList have mistakes, Parse
// also returns the other entries.
func Parse(data []byte) (*Config, error) {
	if len(data) > maxBytes {
		return nil, Error{{Message: fmt.Sprintf("%d bytes are more than a ConfigMap holds (%d)", len(data), maxBytes)}}
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil, Error{{Message: `is empty: it must be an object with configList, such as {"configList": [{"resourceName": "hca", ` +
			`"rdmaHcaMax": 64, "selectors": {"vendors": ["15b3"]}}]}`}}
	}
	root, err := parse(data)
	if err != nil {
		return nil, Error{{Message: "not JSON: " + err.Error()}}
	}
	r := reader{lines: make(map[string]int), bad: make(map[string]bool)}
	config := r.config(root)
	r.validate(config)
	if len(r.problems) > 0 {
		slices.SortStableFunc(r.problems, func(a, b Problem) int { return a.Line - b.Line })
		return config.sound(r.problems), r.problems
	}
	for i := range config.Pools {
		config.Entries = append(config.Entries, i)
	}
	return config, nil
}

// config reads the document.
func (r *reader) config(root *node) *Config {
	c := &Config{Rescan: defaultInterval}
	var list *node
	r.object(nil, root, map[string]func(*field.Path, *node){
		"periodicUpdateInterval": func(at *field.Path, n *node) {
			// More seconds than a Duration can hold make an interval that never ends; a day does as well.
			if seconds, ok := r.integer(at, n, math.MaxInt32, "seconds between discoveries; 0 turns them off"); ok {
				c.Rescan = time.Duration(seconds) * time.Second
			}
		},
		"configList": func(at *field.Path, n *node) {
			list = n
			r.array(at, n, func(at *field.Path, n *node) { c.Pools = append(c.Pools, r.pool(at, n)) })
		},
	})
	at := field.NewPath("configList")
	switch {
	case root.kind() != "an object":
	case list == nil || list.value == nil:
		r.report(at, root.line, "is missing: it lists the resources to hand out")
	case list.isArray && len(c.Pools) == 0:
		r.report(at, list.line, "is empty: it must list at least one resource")
	}
	return c
}

// pool reads an entry of configList.
func (r *reader) pool(at *field.Path, n *node) v1alpha1.RDMAPoolConfig {
	var p v1alpha1.RDMAPoolConfig
	r.object(at, n, map[string]func(*field.Path, *node){
		"resourceName":   r.text(&p.ResourceName),
		"resourcePrefix": r.text(&p.ResourcePrefix),
		"rdmaHcaMax": func(at *field.Path, n *node) {
			if v, ok := r.integer(at, n, v1alpha1.MaxRDMAUnits, "units of the resource on a node, over all its HCAs"); ok {
				p.RDMAHCAMax = int32(v)
			}
		},
		"devices":         r.texts(&p.Devices),
		"selectors":       func(at *field.Path, n *node) { p.Selectors = r.selectors(at, n) },
		"mode":            r.text((*string)(&p.Mode)),
		"deviceNodes":     r.text((*string)(&p.DeviceNodes)),
		"excludeTopology": r.boolean(&p.ExcludeTopology),
	})
	return p.OfFile()
}

func (r *reader) selectors(at *field.Path, n *node) *v1alpha1.RDMASelectors {
	if n.value == nil {
		return nil
	}
	s := &v1alpha1.RDMASelectors{}
	r.object(at, n, map[string]func(*field.Path, *node){
		"vendors":      r.texts(&s.Vendors),
		"deviceIDs":    r.texts(&s.DeviceIDs),
		"drivers":      r.texts(&s.Drivers),
		"ifNames":      r.texts(&s.IfNames),
		"linkTypes":    r.texts(&s.LinkTypes),
		"pciAddresses": r.texts(&s.PCIAddresses),
		"acpiIndexes":  r.texts(&s.ACPIIndexes),
		"pfNames":      r.texts(&s.PFNames),
		"rootDevices":  r.texts(&s.RootDevices),
		"pKeys":        r.texts(&s.PKeys),
		"linkLayers":   r.texts(&s.LinkLayers),
		"isRdma":       r.boolean(&s.IsRDMA),
		"numaNodes": func(at *field.Path, n *node) {
			r.array(at, n, func(at *field.Path, n *node) {
				if v, ok := r.integer(at, n, math.MaxInt32, "a NUMA node; a device whose node is unknown matches none"); ok {
					s.NUMANodes = append(s.NUMANodes, int32(v))
				}
			})
		},
		"minRateGbps": func(at *field.Path, n *node) {
			if v, ok := r.integer(at, n, math.MaxInt32, "the least rate in Gb/s"); ok {
				s.MinRateGbps = int32(v)
			}
		},
	})
	return s
}

// validate adds the checks that need values, with the same rules as for an RDMAPool.
func (r *reader) validate(c *Config) {
	first := make(map[string]int)
	for i := range c.Pools {
		at := field.NewPath("configList").Index(i)
		if r.bad[at.String()] {
			continue // It is no object, so there are no values to check.
		}
		for _, e := range c.Pools[i].Validate(at) {
			if !r.reported(e.Field) {
				r.problems = append(r.problems, Problem{Path: e.Field, Line: r.line(e.Field), Message: e.ErrorBody()})
			}
		}
		name := c.Pools[i].ResourceName
		if name == "" {
			continue
		}
		if other, found := first[name]; found {
			at := at.Child("resourceName")
			r.report(at, r.line(at.String()), fmt.Sprintf("%q is the name of configList[%d] already: each entry needs a name of its own", name,
				other))
			continue
		}
		first[name] = i
	}
}
