package tree_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

// BenchmarkRender writes nodes to the test's temporary directory, without libraries; one operation is one node.
func BenchmarkRender(b *testing.B) {
	for _, name := range profile.Names() {
		p, err := profile.Load(name)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(name, func(b *testing.B) {
			dir := b.TempDir()
			for i := range b.N {
				if err := tree.Render(b.Context(), tree.Options{Profile: p, Node: i, Root: filepath.Join(dir, fmt.Sprint(i)),
					PlainDevices: true}); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkRenderCluster writes 1,008 nodes, 56 racks of GB200; one operation is all of them, and the goal is two minutes.
func BenchmarkRenderCluster(b *testing.B) {
	p, err := profile.Load("gb200-nvl72")
	if err != nil {
		b.Fatal(err)
	}
	const nodes = 1008
	for range b.N {
		dir := b.TempDir()
		for i := range nodes {
			if err := tree.Render(b.Context(), tree.Options{Profile: p, Node: i, Nodes: nodes, Root: filepath.Join(dir, fmt.Sprint(i)),
				PlainDevices: true}); err != nil {
				b.Fatal(err)
			}
		}
	}
}
