// Package fabric parses the names of GPUs, MIG and RDMA devices, and computes what fits on a GPU. It does not make requests.
package fabric

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Clique is a set of GPUs that share one NVLink domain, as the node label nvidia.com/gpu.clique and a ComputeDomain's status write it.
type Clique struct {
	ClusterUUID string // lower case
	ID          uint32
}

var uuid = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)

// ParseClique reads "<ClusterUUID>.<CliqueID>".
func ParseClique(text string) (Clique, error) {
	cluster, id, found := strings.Cut(text, ".")
	cluster = strings.ToLower(cluster)
	if !found || !uuid.MatchString(cluster) {
		return Clique{}, fmt.Errorf(
			"%q is not a clique: want <ClusterUUID>.<CliqueID>, for example 69a19a31-f41c-45a5-8245-579b6bce5bdd.32766",
			text,
		)
	}
	number, err := strconv.ParseUint(id, 10, 32)
	if err != nil {
		return Clique{}, fmt.Errorf("%q has the clique id %q: want a number from 0 to 4294967295", text, id)
	}
	return Clique{cluster, uint32(number)}, nil
}
