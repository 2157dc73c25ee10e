package program

import (
	"io"
	"os"
	"time"

	"gpufabric.io/fakes/smi"
	"gpufabric.io/fakes/state"
)

// runSMI is nvidia-smi of the node that it lies in.
func runSMI(args []string, stdout io.Writer) error {
	root, err := state.FindRoot()
	if err != nil {
		return err
	}
	c := smi.Command{Root: root, Stdout: stdout, Now: time.Now(), Getenv: os.Getenv, Opens: state.Opens(root)}
	return c.Run(args)
}
