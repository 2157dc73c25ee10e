package nodeplugin

import (
	"slices"

	"k8s.io/apimachinery/pkg/api/resource"
)

type quantity = resource.Quantity

func parse(text string) quantity { return resource.MustParse(text) }

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}
