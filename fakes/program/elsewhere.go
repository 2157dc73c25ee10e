package program

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/spf13/cobra"

	"gpufabric.io/fakes/smi"
)

// elsewhereCommand runs another program of the project. Objects are made by the drivers' own code and torture runs a control plane: this
// module imports neither, so that others can import it without Kubernetes' libraries.
func elsewhereCommand(name, short, program string, arguments ...string) *cobra.Command {
	return &cobra.Command{
		Use:                name,
		Short:              fmt.Sprintf("%s, by the program %s", short, program),
		DisableFlagParsing: true, // they are the program's
		RunE: func(c *cobra.Command, args []string) error {
			path, err := besideSelf(program)
			if err != nil {
				return fmt.Errorf("%s runs %s, which is neither beside fakefabric, nor in the checkout's bin, nor on the PATH; build it in a checkout "+
					"of gpufabric: make build-%s", name, program, program)
			}
			run := exec.CommandContext(c.Context(), path, append(arguments, args...)...)
			run.Stdin, run.Stdout, run.Stderr = os.Stdin, c.OutOrStdout(), c.ErrOrStderr()
			err = run.Run()
			var exit *exec.ExitError
			if errors.As(err, &exit) && exit.ExitCode() > 0 {
				return smi.StatusError(exit.ExitCode()) // it has reported the reason
			}
			return err
		},
	}
}

// besideSelf finds a program beside this one, in the checkout that this one was built in (fakes/build and bin), or on the PATH.
func besideSelf(program string) (string, error) {
	if self, err := os.Executable(); err == nil {
		directory := filepath.Dir(self)
		for _, path := range []string{filepath.Join(directory, program), filepath.Join(directory, "../../bin", program)} {
			if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
				return path, nil
			}
		}
	}
	return exec.LookPath(program)
}
