// Package host is a role's access to the machine that it runs on.
package host

import (
	"errors"
	"fmt"
	"io"
	"os"

	nvmllib "github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/klog/v2/textlogger"

	"github.com/go-logr/logr"

	"gpufabric.io/drivers/hardware/driver"
	"gpufabric.io/drivers/hardware/imex"
	"gpufabric.io/drivers/hardware/nvml"
	"gpufabric.io/drivers/node/filewatch"
)

// Host is a role's access to the machine that it runs on; the zero value is the real machine.
type Host struct {
	Called         string                                    // the name by which the program was called (argv[0]); empty: gpufabric
	Getenv         func(string) string                       // nil: os.Getenv
	Stdout, Stderr io.Writer                                 // nil: os.Stdout, os.Stderr
	NVML           func(driverRoot string) nvmllib.Interface // nil: go-nvml on the libnvidia-ml.so.1 of the driver that is found
	IMEX           imex.Runner                               // nil: run the node's nvidia-imex as a child process
	Execute        imex.Execute                              // nil: run the driver's programs as child processes
	RESTConfig     func() (*rest.Config, error)              // nil: KUBECONFIG, else in-cluster
	Files          *filewatch.Watcher                        // reports changed directories; nil: one of the role's own
}

// Env returns the value of an environment variable.
func (h Host) Env(name string) string {
	if h.Getenv != nil {
		return h.Getenv(name)
	}
	return os.Getenv(name)
}

// Out is where a role writes its results.
func (h Host) Out() io.Writer {
	if h.Stdout != nil {
		return h.Stdout
	}
	return os.Stdout
}

// Err is where a role writes its log.
func (h Host) Err() io.Writer {
	if h.Stderr != nil {
		return h.Stderr
	}
	return os.Stderr
}

// Logger makes a logger for one role, so that roles in one process do not share verbosity or output. Text from tenants can neither
// start a line of its own in it nor control a terminal.
func (h Host) Logger(role string, verbosity int) logr.Logger {
	return textlogger.NewLogger(textlogger.NewConfig(textlogger.Output(visible{h.Err()}), textlogger.Verbosity(verbosity))).WithName(role)
}

// Library returns NVML of the driver that search finds.
func (h Host) Library(search driver.Search) nvmllib.Interface {
	if h.NVML != nil {
		return h.NVML(search.Locate().Root.Path)
	}
	return nvml.Load(search)
}

// Watcher returns the watcher of directories: the host's, or one for the role alone.
func (h Host) Watcher() *filewatch.Watcher {
	if h.Files != nil {
		return h.Files
	}
	return &filewatch.Watcher{}
}

// Runner returns the runner of IMEX daemons.
func (h Host) Runner(programs imex.Programs) imex.Runner {
	if h.IMEX != nil {
		return h.IMEX
	}
	return &imex.Process{Programs: programs, Output: h.Err()}
}

// Executer returns the function that runs those programs of the driver that end by themselves.
func (h Host) Executer() imex.Execute {
	if h.Execute != nil {
		return h.Execute
	}
	return imex.Run
}

// Kubernetes returns how to reach the API server.
func (h Host) Kubernetes() (*rest.Config, error) {
	if h.RESTConfig != nil {
		return h.RESTConfig()
	}
	if path := h.Env("KUBECONFIG"); path != "" {
		config, err := clientcmd.BuildConfigFromFlags("", path)
		if err != nil {
			return nil, fmt.Errorf("read KUBECONFIG %s: %w", path, err)
		}
		return config, nil
	}
	config, err := rest.InClusterConfig()
	if errors.Is(err, rest.ErrNotInCluster) {
		return nil, errors.New("the API server cannot be found: KUBECONFIG is not set, and this process does not run in a pod with a service " +
			"account")
	}
	if err != nil {
		return nil, fmt.Errorf("read the pod's service account: %w", err)
	}
	return config, nil
}
