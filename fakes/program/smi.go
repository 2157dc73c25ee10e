package program

import (
	"context"
	"io"
	"os"
	"time"

	"gpufabric.io/fakes/smi"
	"gpufabric.io/fakes/state"
)

// runSMI is nvidia-smi of the node that it lies in.
func runSMI(ctx context.Context, args []string, stdout io.Writer) error {
	root, err := state.FindRoot()
	if err != nil {
		return err
	}
	c := smi.Command{Root: root, Stdout: stdout, Now: time.Now(), Getenv: os.Getenv, Opens: state.Opens(root), Done: ctx.Done()}
	return c.Run(args)
}
