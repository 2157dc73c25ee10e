package exclusive

import (
	"fmt"
	"regexp"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/store"
)

// grantRecord records on disk the devices that a pod sandbox was given.
type grantRecord struct {
	Sandbox   string  `json:"sandbox"`
	Pod       string  `json:"pod"` // namespace/name, for people
	Namespace string  `json:"namespace"`
	Grants    []Grant `json:"grants"`
	// Interfaces are the settings of the devices' interfaces on the node before they were given.
	Interfaces []Interface `json:"interfaces,omitempty"`
}

// sandboxID matches a container runtime's sandbox IDs, which become file names.
var sandboxID = regexp.MustCompile(`^[a-zA-Z0-9][a-zA-Z0-9_-]{0,127}$`)

// bookFormat describes how entries are stored.
func bookFormat() store.Format[grantRecord] {
	return store.Format[grantRecord]{Name: "gpufabric-rdma-grant", Version: 1, Check: func(name string, e grantRecord) error {
		if e.Sandbox != name || len(e.Grants) == 0 {
			return fmt.Errorf("it belongs to the sandbox %.80q and has %d grants, want the sandbox of its name and a grant", e.Sandbox,
				len(e.Grants))
		}
		return nil
	}}
}

// book has an entry for each sandbox that was given something, by the sandbox's ID. Devices of an entry that cannot be read stay in
// their namespace until that ends. Devices of other pods still move.
type book struct{ *store.Store[grantRecord] }

func openBook(dir string, writer atomicfile.Writer) (book, []store.Unreadable, error) {
	entries, unreadable, err := store.Open(store.Options{Directory: dir, Extension: ".json", Writer: writer}, bookFormat())
	if err != nil {
		return book{}, nil, fmt.Errorf("open the record of RDMA devices given to pods: %w", err)
	}
	return book{entries}, unreadable, nil
}

func (b book) put(e grantRecord) error {
	if !sandboxID.MatchString(e.Sandbox) {
		return fmt.Errorf("the pod sandbox ID %.80q cannot be a file name", e.Sandbox)
	}
	return b.Put(e.Sandbox, e)
}
