// Command fakefabric makes fake fabric nodes. Under the names nvidia-smi, nvidia-imex and nvidia-imex-ctl it is that command of the
// node to which it belongs.
package main

import (
	"os"

	"gpufabric.io/fakes/program"
)

func main() {
	os.Exit(program.Main(os.Args))
}
