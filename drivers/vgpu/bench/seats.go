package bench

import (
	"fmt"
	"os"

	"gpufabric.io/drivers/gpu/cores"
	"gpufabric.io/drivers/gpu/limiter"
)

// seats are the seats of the measured processes, each as its own container.
type seats struct {
	cores.Seats
}

// seats makes a directory for some processes. lend lends idle time.
func (o *Options) seats(lend bool) (*seats, error) {
	directory, err := os.MkdirTemp("", "gpufabric-bench-cores-")
	if err != nil {
		return nil, fmt.Errorf("make the seats of processes on the GPU: %w", err)
	}
	return &seats{cores.Seats{Directory: directory, Lend: lend}}, nil
}

// open makes the seat of a container with a limit, and returns the seat's files by their paths in a container.
func (s *seats) open(name string, limit limiter.Limit) (map[string]string, error) {
	given := []limiter.Limit{limit}
	if err := s.Open(name, given); err != nil {
		return nil, err
	}
	out := map[string]string{}
	for _, m := range s.Mounts(name, given) {
		out[m.ContainerPath] = m.HostPath
	}
	return out, nil
}

// end removes everything.
func (s *seats) end() error { return os.RemoveAll(s.Directory) }
