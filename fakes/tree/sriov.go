package tree

import (
	"fmt"
	"path/filepath"

	"gpufabric.io/fakes/profile"
)

// linkVirtualFunctions joins virtual functions and their physical function.
func linkVirtualFunctions(w *writer, n *profile.Node) {
	for _, nic := range n.NICs {
		if nic.Physical < 0 {
			continue
		}
		vf, pf := nicFunction(nic).path(), nicFunction(n.NICs[nic.Physical]).path()
		w.link(filepath.Join(pf, fmt.Sprintf("virtfn%d", nic.VF)), vf)
		w.link(filepath.Join(vf, "physfn"), pf)
	}
}
