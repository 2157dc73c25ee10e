package fabric

import (
	"fmt"

	"gpufabric.io/fakes/profile"
)

// Racks describes in a sentence how this many nodes of a profile (a name or a file) form racks. A profile has one machine and the
// size of its rack. For more nodes than a rack has, the rack is repeated. Each repetition is another NVLink clique, with other
// identities.
func Racks(profileName string, nodes int) (string, error) {
	p, err := profile.Load(profileName)
	if err != nil {
		return "", err
	}
	size := 0
	if p.Fabric != nil {
		size = p.Fabric.NodesPerClique
	}
	racks := 0
	if size > 0 {
		racks = (nodes + size - 1) / size
	}
	switch {
	case size < 2:
		return fmt.Sprintf("%d nodes of %s, none of which shares NVLink with another", nodes, p.Name), nil
	case nodes < size:
		return fmt.Sprintf("%d nodes of %s, part of a rack of %d", nodes, p.Name, size), nil
	case nodes == size:
		return fmt.Sprintf("%d nodes of %s, a rack", nodes, p.Name), nil
	case nodes%size == 0:
		return fmt.Sprintf("%d nodes of %s, whose rack has %d: it is repeated, %d NVLink cliques in all", nodes, p.Name, size, racks), nil
	default:
		return fmt.Sprintf("%d nodes of %s, whose rack has %d: it is repeated, %d NVLink cliques in all, the last of %d nodes", nodes, p.Name,
			size, racks, nodes%size), nil
	}
}
