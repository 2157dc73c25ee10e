// Command terraform-provider-gpufabric serves the gpufabric provider to Terraform and OpenTofu.
package main

import (
	"context"
	"flag"
	"log"

	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"helm.sh/helm/v3/pkg/kube"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/provider"
)

//go:generate ./generate-docs

// version is set by the release build.
var version = "dev"

func main() {
	debug := flag.Bool("debug", false, "wait for a debugger: print how to attach Terraform to this process")
	flag.Parse()
	// Helm would name itself after the executable, whose name holds the version: every provider upgrade would change the owner of every field.
	kube.ManagedFieldsManager = cluster.UserAgent
	err := providerserver.Serve(context.Background(), provider.New(version), providerserver.ServeOpts{
		Address: provider.Address,
		Debug:   *debug,
	})
	if err != nil {
		log.Fatal(err)
	}
}
