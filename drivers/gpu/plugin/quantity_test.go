package plugin

import (
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

type quantity = resource.Quantity

func parse(text string) quantity { return resource.MustParse(text) }

func sorted(names []string) []string {
	slices.Sort(names)
	return names
}

func qualified(name string) resourceapi.QualifiedName { return resourceapi.QualifiedName(name) }
