package program_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"

	"gpufabric.io/drivers/program"
	"gpufabric.io/drivers/program/cluster"
	"gpufabric.io/drivers/program/node"
)

// run runs a subcommand by the program that has it.
func run(ctx context.Context, host program.Host, args ...string) error {
	for _, command := range node.Program().Commands {
		if command(host).Name() == args[0] {
			return node.Program().Run(ctx, host, args...)
		}
	}
	return cluster.Program().Run(ctx, host, args...)
}

func TestHelpListsTheProgramsSubcommands(t *testing.T) {
	for _, c := range []struct {
		program         program.Program
		listed, missing []string
	}{
		{cluster.Program(), []string{"doctor", "topology", "drain", "controller", "webhook"}, []string{"gpu-plugin", "imex-daemon"}},
		{node.Program(), []string{"compute-domain-plugin", "imex-daemon", "gpu-plugin"}, []string{"doctor", "console", "controller"}},
	} {
		var out strings.Builder
		if err := c.program.Run(t.Context(), program.Host{Stdout: &out, Stderr: &out}, "help"); err != nil {
			t.Fatal(err)
		}
		for _, name := range c.listed {
			if !strings.Contains(out.String(), "\n  "+name+" ") {
				t.Errorf("%s: %s is missing in\n%s", c.program.Name, name, out.String())
			}
		}
		for _, name := range c.missing {
			if strings.Contains(out.String(), "\n  "+name+" ") {
				t.Errorf("%s: %s is listed in\n%s", c.program.Name, name, out.String())
			}
		}
	}
}

func TestProgramPrintsItsVersion(t *testing.T) {
	for _, p := range []program.Program{cluster.Program(), node.Program()} {
		var out strings.Builder
		err := p.Run(t.Context(), program.Host{Stdout: &out, Stderr: &out}, "--version")
		if want := p.Name + " version " + program.Version + "\n"; err != nil || out.String() != want {
			t.Errorf("%q %v, want %q", out.String(), err, want)
		}
	}
}

func TestProgramChecksFlagsFirst(t *testing.T) {
	asked := false
	host := program.Host{
		Getenv: func(string) string { return "" },
		RESTConfig: func() (*rest.Config, error) {
			asked = true
			return nil, errors.New("no API server here")
		},
	}
	for name, c := range map[string]struct {
		args []string
		says []string
	}{
		"an unknown role":                  {[]string{"conductor"}, []string{`unknown command "conductor"`}},
		"an unknown flag":                  {[]string{"controller", "--colour=red"}, []string{"--colour", "gpufabric controller --help"}},
		"a boolean behind a space":         {[]string{"rdma-plugin", "--device-plugin", "false"}, []string{`"false"`, "--flag=false"}},
		"shares without a word":            {[]string{"vgpu"}, []string{"gpufabric vgpu bench"}},
		"shares that are nothing":          {[]string{"vgpu", "share"}, []string{`"share"`, "gpufabric vgpu bench"}},
		"a bench of no round":              {[]string{"vgpu", "bench", "--rounds=0"}, []string{"--rounds", "1 or more"}},
		"an examination of something else": {[]string{"doctor", "imex"}, []string{`"imex"`, "pod, claim, node"}},
		"pools without a flag's value":     {[]string{"doctor", "rdma", "mlx5_0"}, []string{`"mlx5_0"`, "gpufabric doctor rdma --help"}},
		"a controller without anything":    {[]string{"controller"}, []string{"--namespace", "--image"}},
		"a relative host path": {[]string{"controller", "--namespace=n", "--image=i", "--host-mount=fake"},
			[]string{"--host-mount", `"fake"`}},
		"a pull policy that is none": {[]string{"controller", "--namespace=n", "--image=i", "--image-pull-policy=Maybe"},
			[]string{"Maybe", "IfNotPresent"}},
		"a plugin without its node":    {[]string{"compute-domain-plugin", "--namespace=n"}, []string{"--node-name"}},
		"a plugin without a namespace": {[]string{"compute-domain-plugin", "--node-name=n"}, []string{"--namespace"}},
		"a plugin without either":      {[]string{"compute-domain-plugin"}, []string{"--namespace", "--node-name"}},
		"GPUs without their node":      {[]string{"gpu-plugin", "--mig=none"}, []string{"--node-name", "--mig", "static"}},
		"NICs without their node":      {[]string{"rdma-plugin"}, []string{"--node-name"}},
		"shares without their node":    {[]string{"vgpu-plugin", "--mig-strategy=mixed"}, []string{"--node-name", "--mig-strategy"}},
		"a monitor without its node":   {[]string{"vgpu-monitor"}, []string{"--node-name"}},
		"a daemon outside a pod":       {[]string{"imex-daemon"}, []string{"NODE_NAME", "POD_IP", "COMPUTE_DOMAIN_UUID"}},
	} {
		t.Run(name, func(t *testing.T) {
			err := run(t.Context(), host, c.args...)
			for _, want := range c.says {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("error %v does not say %q", err, want)
				}
			}
		})
	}
	if asked {
		t.Error("the API server was looked for")
	}
}

// A role that is given its host and nothing of this machine must fail with the host's own error, which shows that it uses nothing
// else.
func TestRolesReachTheAPIServerThroughTheirHost(t *testing.T) {
	none := errors.New("no API server here")
	env := map[string]string{
		"NODE_NAME": "node-a", "POD_NAMESPACE": "n", "POD_IP": "127.0.0.1",
		"COMPUTE_DOMAIN_UUID": "u", "COMPUTE_DOMAIN_NAME": "d", "COMPUTE_DOMAIN_NAMESPACE": "default",
	}
	host := program.Host{Getenv: func(name string) string { return env[name] }, RESTConfig: func() (*rest.Config, error) { return nil, none }}
	for _, args := range [][]string{{"controller", "--image=i"}, {"compute-domain-plugin"}, {"imex-daemon"}} {
		ctx, cancel := context.WithCancel(t.Context())
		if err := run(ctx, host, args...); !errors.Is(err, none) {
			t.Errorf("%s: %v", slices.Concat(args), err)
		}
		cancel()
	}
}
