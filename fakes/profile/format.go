package profile

import (
	"fmt"

	"go.yaml.in/yaml/v3"
)

// Format writes a profile as a file; keys with zero values, which a file need not have, are left out.
func Format(p *Profile) ([]byte, error) {
	var n yaml.Node
	if err := n.Encode(p); err != nil {
		return nil, fmt.Errorf("write profile: %w", err)
	}
	prune(&n)
	return yaml.Marshal(&n)
}

// prune takes zero values out of mappings, from the leaves up.
func prune(n *yaml.Node) {
	for _, c := range n.Content {
		prune(c)
	}
	if n.Kind != yaml.MappingNode {
		return
	}
	var kept []*yaml.Node
	for i := 0; i+1 < len(n.Content); i += 2 {
		if !zero(n.Content[i+1]) {
			kept = append(kept, n.Content[i], n.Content[i+1])
		}
	}
	n.Content = kept
}

func zero(n *yaml.Node) bool {
	if n.Kind != yaml.ScalarNode {
		return len(n.Content) == 0
	}
	return n.Tag == "!!null" || n.Value == "" || n.Tag == "!!int" && n.Value == "0" || n.Tag == "!!bool" && n.Value == "false"
}
