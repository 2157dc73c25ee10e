package nodeplugin

import "k8s.io/apimachinery/pkg/api/resource"

type quantity = resource.Quantity

func parse(text string) quantity { return resource.MustParse(text) }
