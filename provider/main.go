// Command terraform-provider-gpufabric serves the gpufabric provider to Terraform and OpenTofu.
package main

import (
	"context"
	"flag"
	"log"

	"gpufabric.io/provider/internal/provider"
)

//go:generate ./generate-docs

// version is set by the release build.
var version = "dev"

func main() {
	debug := flag.Bool("debug", false, "wait for a debugger: print how to attach Terraform to this process")
	flag.Parse()
	if err := provider.Serve(context.Background(), provider.New(version), *debug); err != nil {
		log.Fatal(err)
	}
}
