// Command gpufabric runs one command or role of the cluster; `gpufabric help` lists them.
package main

import (
	"os"

	"gpufabric.io/drivers/program/cluster"
)

func main() { os.Exit(cluster.Program().Main()) }
