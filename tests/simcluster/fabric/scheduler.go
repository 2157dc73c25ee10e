package fabric

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"gpufabric.io/tests/simcluster/simnode"
)

// SchedulerRepository is the image of gpufabric-scheduler, which runs where containers are processes.
const SchedulerRepository = Repository + "-scheduler"

// schedulerName is its program's.
const schedulerName = "gpufabric-scheduler"

// schedulerArguments are gpufabric-scheduler's as a process needs them. kube-scheduler does not read KUBECONFIG. Its
// configuration names the file, and its flags name it again for the authentication of requests for its metrics. It listens on
// the pod's address.
func schedulerArguments(container simnode.Container, args []string, kubeconfig string) ([]string, error) {
	const flag = "--config="
	at := slices.IndexFunc(args, func(arg string) bool { return strings.HasPrefix(arg, flag) })
	if at < 0 || kubeconfig == "" {
		return nil, errors.New("run gpufabric-scheduler: its pod has no --config or no token")
	}
	content, err := os.ReadFile(strings.TrimPrefix(args[at], flag))
	if err != nil {
		return nil, fmt.Errorf("run gpufabric-scheduler: %w", err)
	}
	var configuration map[string]any
	if err := yaml.Unmarshal(content, &configuration); err != nil {
		return nil, fmt.Errorf("read the scheduler's configuration: %w", err)
	}
	configuration["clientConnection"] = map[string]any{"kubeconfig": kubeconfig}
	if content, err = yaml.Marshal(configuration); err != nil {
		return nil, fmt.Errorf("write the scheduler's configuration: %w", err)
	}
	file := filepath.Join(filepath.Dir(kubeconfig), "scheduler.yaml")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		return nil, fmt.Errorf("write the scheduler's configuration: %w", err)
	}
	args = slices.Clone(args)
	args[at] = flag + file
	return append(args, "--bind-address="+container.Address, "--authentication-kubeconfig="+kubeconfig,
		"--authorization-kubeconfig="+kubeconfig), nil
}
