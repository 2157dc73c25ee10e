package policy

import (
	"fmt"
	"strings"
)

// permit refuses an image that the administrator has not allowed.
func (o Options) permit(image string) error {
	for _, allowed := range o.Images {
		if allows(allowed, image) {
			return nil
		}
	}
	listed := "which is empty"
	if len(o.Images) > 0 {
		listed = "which has " + strings.Join(o.Images, ", ")
	}
	return fmt.Errorf("image %s is not in the chart's value rdma.nicClusterPolicy.images, %s: drivers run privileged on every node with a "+
		"NIC, so an administrator lists the allowed images", image, listed)
}

// allows reports whether an entry of the list matches an image: by the image's whole name, by its repository (mellanox/ofed-driver:
// every tag and digest), or by a path that ends in a slash (mellanox/: every repository below). The admission policy
// controller-daemonsets reads entries in the same way.
func allows(entry, image string) bool {
	if strings.HasSuffix(entry, "/") {
		return strings.HasPrefix(image, entry)
	}
	rest, found := strings.CutPrefix(image, entry)
	return found && (rest == "" || rest[0] == ':' || rest[0] == '@')
}
