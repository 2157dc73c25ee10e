package bench

import (
	"errors"
	"fmt"
	"os"

	"gpufabric.io/drivers/gpu/cores"
	"gpufabric.io/drivers/gpu/limiter"
)

// turns is an arbiter of this program, which gives the measured processes their turns.
type turns struct {
	arbiter cores.Arbiter
	made    []string // its containers
}

// arbiter makes one. lend says whether idle time is lent.
func (o *Options) arbiter(lend bool) (*turns, error) {
	directory, err := os.MkdirTemp("", "gpufabric-bench-turns-")
	if err != nil {
		return nil, fmt.Errorf("make an arbiter of the GPU's time: %w", err)
	}
	return &turns{arbiter: cores.Arbiter{Directory: directory, Lend: lend}}, nil
}

// open makes the place of a container with a limit, and returns the directory of its socket.
func (t *turns) open(name string, limit limiter.Limit) (string, error) {
	if err := t.arbiter.Open(name, []limiter.Limit{limit}); err != nil {
		return "", err
	}
	t.made = append(t.made, name)
	return t.arbiter.Path(name), nil
}

// end removes everything.
func (t *turns) end() error {
	var err error
	for _, name := range t.made {
		err = errors.Join(err, t.arbiter.Close(name))
	}
	t.arbiter.Stop()
	return errors.Join(err, os.RemoveAll(t.arbiter.Directory))
}
