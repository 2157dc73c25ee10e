package program

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"

	"k8s.io/client-go/rest"
)

func TestHelpNamesEveryRole(t *testing.T) {
	var out strings.Builder
	if err := Run(t.Context(), Host{Stdout: &out, Stderr: &out}, "help"); err != nil {
		t.Fatal(err)
	}
	for _, role := range []string{"controller", "compute-domain-plugin", "imex-daemon"} {
		if !strings.Contains(out.String(), "\n  "+role+" ") {
			t.Errorf("%s is missing in\n%s", role, out.String())
		}
	}
}

func TestProgramPrintsItsVersion(t *testing.T) {
	var out strings.Builder
	if err := Run(t.Context(), Host{Stdout: &out, Stderr: &out}, "--version"); err != nil || !strings.Contains(out.String(), Version) {
		t.Errorf("%q %v", out.String(), err)
	}
}

func TestProgramChecksFlagsFirst(t *testing.T) {
	asked := false
	host := Host{
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
		"a bench of no round":              {[]string{"vgpu", "bench", "--rounds=0"}, []string{"--rounds", "1 and more"}},
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
			err := Run(t.Context(), host, c.args...)
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
	host := Host{Getenv: func(name string) string { return env[name] }, RESTConfig: func() (*rest.Config, error) { return nil, none }}
	for _, args := range [][]string{{"controller", "--image=i"}, {"compute-domain-plugin"}, {"imex-daemon"}} {
		ctx, cancel := context.WithCancel(t.Context())
		if err := Run(ctx, host, args...); !errors.Is(err, none) {
			t.Errorf("%s: %v", slices.Concat(args), err)
		}
		cancel()
	}
}
