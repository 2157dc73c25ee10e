package provider

import (
	"context"
	"encoding/json"
	"strings"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/go-plugin"
	"github.com/hashicorp/terraform-plugin-framework/providerserver"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6"
	"github.com/hashicorp/terraform-plugin-go/tfprotov6/tf6server"
)

// newAttachedCLI is newCLI with the provider served by this process: Terraform attaches to it instead of starting the program three or
// four times a command, which costs more than most commands. A test needs the program (newCLI) where its configuration has two provider
// blocks, which Terraform would both send to one server, or paths relative to its directory, or where it reads the log or the
// environment of the program.
func newAttachedCLI(t *testing.T, rc, dir string, variables map[string]string) *cli {
	t.Helper()
	c := newCLI(t, rc, dir, variables)
	c.env = append(c.env, "TF_REATTACH_PROVIDERS="+serve(t))
	return c
}

// serve serves the provider until the test ends, and returns the value of TF_REATTACH_PROVIDERS.
func serve(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	reattach, ended := make(chan *plugin.ReattachConfig), make(chan struct{})
	constructor := New("test")
	go func() { // plugin.Serve closes ended
		_ = tf6server.Serve(Address, func() tfprotov6.ProviderServer { return providerserver.NewProtocol6(constructor())() },
			tf6server.WithDebug(ctx, reattach, ended), tf6server.WithGoPluginLogger(hclog.NewNullLogger()), tf6server.WithLoggingSink(t))
	}()
	t.Cleanup(func() {
		cancel()
		<-ended
	})
	var config *plugin.ReattachConfig
	select {
	case config = <-reattach:
	case <-ended:
		t.Fatal("the provider's server ended before Terraform could attach to it")
	}
	entry := map[string]any{
		"Protocol": config.Protocol, "ProtocolVersion": config.ProtocolVersion, "Pid": config.Pid, "Test": true,
		"Addr": map[string]string{"Network": config.Addr.Network(), "String": config.Addr.String()},
	}
	_, name, _ := strings.Cut(Address, "/")
	text, err := json.Marshal(map[string]any{Address: entry, "registry.opentofu.org/" + name: entry})
	must(t, err)
	return string(text)
}
