// Command fakefabric makes fabric nodes that are not there. Under the names nvidia-smi, nvidia-imex and nvidia-imex-ctl it is that command
// of the node it lies in.
package main

import (
	"os"

	"gpufabric.io/fakes/program"
)

func main() {
	os.Exit(program.Main(os.Args))
}
