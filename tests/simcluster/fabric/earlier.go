package fabric

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	clusterprogram "gpufabric.io/drivers/program/cluster"
	"gpufabric.io/tests/simcluster/simnode"
)

// EarlierTag is the tag of the images of an earlier version, see Setup.WithEarlier.
const EarlierTag = "earlier"

// versions runs the programs of an earlier checkout in containers whose image has EarlierTag, and those of this one in the others.
type versions struct {
	*processes
	earlier *processes
}

var _ simnode.Runtime = (*versions)(nil)

// WithEarlier adds the programs of another checkout, which are built. The hardware's fakes stay those of this checkout.
func (s Setup) WithEarlier(root string) (Setup, error) {
	now, ok := s.Runtime.(*processes)
	if !ok {
		return Setup{}, fmt.Errorf("an earlier version's containers run as %s alone", AsProcesses)
	}
	earlier := &processes{bin: filepath.Join(root, "bin")}
	var errs []error
	for _, path := range []string{earlier.path(clusterprogram.Name), earlier.path(schedulerName), now.path(schedulerName)} {
		if _, err := os.Stat(path); err != nil {
			errs = append(errs, fmt.Errorf("two versions need `make build-gpufabric build-scheduler` of both: %w", err))
		}
	}
	s.Runtime = &versions{processes: now, earlier: earlier}
	return s, errors.Join(errs...)
}

func (v *versions) Run(ctx context.Context, container simnode.Container) error {
	return v.of(container).Run(ctx, container)
}

func (v *versions) Exec(ctx context.Context, container simnode.Container, command []string) error {
	return v.of(container).Exec(ctx, container, command)
}

func (v *versions) of(container simnode.Container) *processes {
	if strings.HasSuffix(container.Image, ":"+EarlierTag) {
		return v.earlier
	}
	return v.processes
}
