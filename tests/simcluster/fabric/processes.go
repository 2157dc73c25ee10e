package fabric

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"gpufabric.io/tests/simcluster/process"
	"gpufabric.io/tests/simcluster/simnode"
)

// processGrace is how long a role may take to end when its container is stopped.
const processGrace = 10 * time.Second

// processes runs the roles of gpufabric as processes of the programs themselves, with the fake C library and the fake IMEX daemon of
// the node's driver root. They can be killed like containers, without a chance to clean up.
type processes struct {
	bin string // the directory of the programs
}

func (p *processes) path(name string) string { return filepath.Join(p.bin, name) }

var _ simnode.Runtime = (*processes)(nil)

// Owns reports whether the image is that of gpufabric or gpufabric-scheduler.
func (p *processes) Owns(image string) bool {
	return ownImage(image) || imageOf(image, SchedulerRepository)
}

// Run runs the role that the container's arguments name.
func (p *processes) Run(ctx context.Context, container simnode.Container) error {
	return p.call(ctx, container, container.Args)
}

// Exec runs a probe's command, which is gpufabric itself with other arguments.
func (p *processes) Exec(ctx context.Context, container simnode.Container, command []string) error {
	return p.call(ctx, container, command)
}

func (p *processes) call(ctx context.Context, container simnode.Container, args []string) error {
	kubeconfig := ""
	if container.REST != nil {
		var err error
		if kubeconfig, err = writeKubeconfig(container); err != nil {
			return err
		}
	}
	name, args := programOf(args)
	if args = arguments(container, args); imageOf(container.Image, SchedulerRepository) {
		name = schedulerName
		var err error
		if args, err = schedulerArguments(container, args, kubeconfig); err != nil {
			return err
		}
	}
	return runProcess(ctx, container, kubeconfig, p.path(name), args...)
}

// runProcess runs a program as a container's, until it ends or ctx is done.
func runProcess(ctx context.Context, container simnode.Container, kubeconfig, program string, args ...string) error {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = container.Output, container.Output
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error {
		if errors.Is(context.Cause(ctx), simnode.ErrKilled) {
			return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		}
		return cmd.Process.Signal(syscall.SIGTERM)
	}
	cmd.WaitDelay = processGrace
	// Of this process's environment it gets only the name of the cluster, since a container inherits nothing.
	cmd.Env = []string{"PATH=/usr/bin:/bin"}
	if marker, ok := os.LookupEnv(process.MarkerEnv); ok {
		cmd.Env = append(cmd.Env, process.MarkerEnv+"="+marker)
	}
	// The fake nvidia-imex reads there what its container has, and the addresses of its peers' names.
	cmd.Env = append(cmd.Env, "FAKEFABRIC_CONTAINER="+container.Bundle, "FAKEFABRIC_HOSTS="+environment(container, "HOSTS_FILE"))
	for name, value := range container.Env {
		cmd.Env = append(cmd.Env, name+"="+value)
	}
	for name := range defaultPlaces {
		cmd.Env = append(cmd.Env, name+"="+environment(container, name))
	}
	if kubeconfig != "" {
		cmd.Env = append(cmd.Env, "KUBECONFIG="+kubeconfig)
	}
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", container.Name, err)
	}
	return nil
}

// writeKubeconfig writes a kubeconfig in place of the service account's files, which a process here does not have at their usual
// place.
func writeKubeconfig(container simnode.Container) (string, error) {
	rest := container.REST
	config := clientcmdapi.NewConfig()
	config.Clusters["pod"] = &clientcmdapi.Cluster{Server: rest.Host, CertificateAuthorityData: rest.CAData}
	config.AuthInfos["pod"] = &clientcmdapi.AuthInfo{TokenFile: rest.BearerTokenFile}
	config.Contexts["pod"] = &clientcmdapi.Context{Cluster: "pod", AuthInfo: "pod", Namespace: container.Namespace}
	config.CurrentContext = "pod"
	path := filepath.Join(filepath.Dir(rest.BearerTokenFile), "kubeconfig")
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		return "", fmt.Errorf("write the container's kubeconfig: %w", err)
	}
	return path, nil
}
