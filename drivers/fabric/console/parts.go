package console

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"

	"gpufabric.io/drivers/fabric"
)

// parts are a picture, split into parts that change independently: each node, each domain, each rack's list of nodes. Each part has the
// version in which it last changed. A stream that has version n receives later changes, however long it was disconnected: there is no
// queue that could grow.
type parts struct {
	version uint64
	all     map[string]part
	gone    map[string]uint64 // removed parts, by the version that removed them
}

type part struct {
	version uint64
	content []byte // JSON
}

// rackPart is a rack without its nodes' content.
type rackPart struct {
	ID      string          `json:"id"`
	Kind    fabric.RackKind `json:"kind"`
	Cliques []string        `json:"cliques,omitempty"`
	Nodes   []string        `json:"nodes"`
	// Place is the rack's among all.
	Place int `json:"place"`
}

// causePart is the common cause of some waiting pods; it does not name all of 10,000.
type causePart struct {
	Cause  string              `json:"cause"`
	Pods   int                 `json:"pods"`
	Oldest int64               `json:"oldest"` // Unix seconds, when the longest wait began
	Median int64               `json:"median"`
	First  []fabric.WaitingPod `json:"first"`
}

// namedPods is how many pods of a cause are named.
const namedPods = 20

// update sets a new picture, and reports whether it differs from the last.
func (p *parts) update(picture *fabric.Picture, about any) (changed bool, err error) {
	if p.all == nil {
		p.all, p.gone = map[string]part{}, map[string]uint64{}
	}
	next := p.version + 1
	seen := make(map[string]bool, len(p.all))
	set := func(name string, value any) {
		content, failed := json.Marshal(value)
		if failed != nil {
			err = fmt.Errorf("write part %s: %w", name, failed)
			return
		}
		seen[name] = true
		if old, known := p.all[name]; known && bytes.Equal(old.content, content) {
			return
		}
		changed = true
		p.all[name] = part{next, bytes.Clone(content)}
		delete(p.gone, name)
	}
	set("about", about)
	set("totals", picture.Totals)
	set("missing", orEmpty(picture.Missing))
	set("strays", orEmpty(picture.Strays))
	set("pools", picture.Pools)
	set("queue", causesOf(picture.Queue))
	for i := range picture.Racks {
		r := &picture.Racks[i]
		names := make([]string, len(r.Nodes))
		for j := range r.Nodes {
			names[j] = r.Nodes[j].Name
			set("node/"+r.Nodes[j].Name, &r.Nodes[j])
		}
		set("rack/"+string(r.Kind)+"/"+r.ID, rackPart{ID: r.ID, Kind: r.Kind, Cliques: r.Cliques, Nodes: names, Place: i})
	}
	for i := range picture.Domains {
		set("domain/"+picture.Domains[i].Name, &picture.Domains[i])
	}
	for name := range p.all {
		if !seen[name] {
			delete(p.all, name)
			p.gone[name] = next
			changed = true
		}
	}
	if changed {
		p.version = next
	}
	return changed, err
}

func orEmpty[T any](all []T) []T {
	if all == nil {
		return []T{}
	}
	return all
}

func causesOf(queue []fabric.WaitingPod) []causePart {
	byCause := map[string]*causePart{}
	since := map[string][]int64{}
	for _, w := range queue { // the oldest first
		c := byCause[w.Cause]
		if c == nil {
			c = &causePart{Cause: w.Cause, Oldest: w.Since}
			byCause[w.Cause] = c
		}
		c.Pods++
		since[w.Cause] = append(since[w.Cause], w.Since)
		if len(c.First) < namedPods {
			c.First = append(c.First, w)
		}
	}
	out := []causePart{}
	for cause, c := range byCause {
		c.Median = since[cause][len(since[cause])/2]
		out = append(out, *c)
	}
	slices.SortFunc(out, func(a, b causePart) int {
		if a.Pods != b.Pods {
			return b.Pods - a.Pods
		}
		return bytes.Compare([]byte(a.Cause), []byte(b.Cause))
	})
	return out
}

// batchSize is how much of a picture is sent at a time, in bytes: a page draws one batch while the next is on its way.
const batchSize = 128 << 10

// batch is a message to the page.
type batch struct {
	Version uint64                     `json:"version"`
	Parts   map[string]json.RawMessage `json:"parts,omitempty"`
	Gone    []string                   `json:"gone,omitempty"`
	// More: further messages of the same picture follow.
	More bool `json:"more,omitempty"`
}

// since returns the messages that bring a page from a version to the present one. The first has the racks, since nodes are placed
// in them.
func (p *parts) since(seen uint64) []batch {
	var names []string
	for name, part := range p.all {
		if part.version > seen {
			names = append(names, name)
		}
	}
	slices.SortFunc(names, func(a, b string) int {
		if x, y := rank(a), rank(b); x != y {
			return x - y
		}
		return bytes.Compare([]byte(a), []byte(b))
	})
	var out []batch
	current := batch{Version: p.version, Parts: map[string]json.RawMessage{}}
	for name, version := range p.gone {
		if version > seen && seen > 0 {
			current.Gone = append(current.Gone, name)
		}
	}
	slices.Sort(current.Gone)
	size := 0
	for _, name := range names {
		content := p.all[name].content
		if size > 0 && size+len(content) > batchSize {
			current.More = true
			out = append(out, current)
			current, size = batch{Version: p.version, Parts: map[string]json.RawMessage{}}, 0
		}
		current.Parts[name] = content
		size += len(content) + len(name)
	}
	if size > 0 || len(current.Gone) > 0 {
		out = append(out, current)
	}
	return out
}

// rank orders parts in messages: nodes and domains come after the parts that contain them.
func rank(name string) int {
	switch {
	case len(name) > 5 && name[:5] == "node/":
		return 1
	case len(name) > 7 && name[:7] == "domain/":
		return 2
	}
	return 0
}

// forget drops removed parts once every stream has seen their removal.
func (p *parts) forget(oldest uint64) {
	for name, version := range p.gone {
		if version <= oldest {
			delete(p.gone, name)
		}
	}
}
