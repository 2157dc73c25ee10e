package torture

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
	"sigs.k8s.io/yaml"
)

// Driver is a DRA driver whose kubelet plugin is a program. In Arguments and Environment, these words in braces stand for places of
// the node: {node} (its name), {hardware} (the fake tree with sys, proc, dev and driver), {kubelet}, {cdi}, {state}, {cgroup},
// {kubeconfig} and {dir} (the node's directory, for anything else).
type Driver struct {
	// Name names the driver in the table.
	Name string `json:"name"`
	// DriverName is the driver's name in ResourceSlices and claims, such as gpu.nvidia.com.
	DriverName string `json:"driverName"`
	// Program is the plugin's path.
	Program string `json:"program"`
	// Arguments are the plugin's arguments.
	Arguments []string `json:"arguments"`
	// Environment is added to the caller's environment.
	Environment map[string]string `json:"environment,omitempty"`
	// Hardware reports whether the plugin reads the fake GPUs. A plugin that invents its devices cannot lose its driver.
	Hardware bool `json:"hardware,omitempty"`
}

// Read reads a driver from a YAML file with the fields of Driver.
func Read(path string) (Driver, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return Driver{}, fmt.Errorf("read the driver's description: %w", err)
	}
	var d Driver
	if err := yaml.UnmarshalStrict(content, &d); err != nil {
		return Driver{}, fmt.Errorf("read the driver's description %s: %w", path, err)
	}
	return d, d.check(path)
}

func (d Driver) check(source string) error {
	var errs []error
	for _, field := range []struct{ name, value string }{{"name", d.Name}, {"driverName", d.DriverName}, {"program", d.Program}} {
		if field.value == "" {
			errs = append(errs, fmt.Errorf("%s: %s is empty", source, field.name))
		}
	}
	if info, err := os.Stat(d.Program); d.Program != "" && (err != nil || !info.Mode().IsRegular() || info.Mode().Perm()&0o111 == 0) {
		errs = append(errs, fmt.Errorf("%s: program %q cannot be run", source, d.Program))
	}
	if d.DriverName == "" {
		return errors.Join(errs...)
	}
	for _, problem := range validation.IsDNS1123Subdomain(d.DriverName) {
		errs = append(errs, fmt.Errorf("%s: driverName %q: %s", source, d.DriverName, problem))
	}
	return errors.Join(errs...)
}

// Gpufabric is this project's GPU plugin.
func Gpufabric(program string) Driver {
	return Driver{Name: "gpufabric", DriverName: "gpu.nvidia.com", Program: program, Hardware: true, Arguments: []string{
		"gpu-plugin", "--node-name={node}", "--driver-root={hardware}/driver", "--sysfs-root={hardware}/sys", "--dev-root={hardware}/dev",
		"--proc-devices={hardware}/proc/devices", "--cgroup-root={cgroup}", "--cdi-root={cdi}", "--kubelet-root={kubelet}",
		"--state-dir={state}", "--mps-dir={dir}/mps", "--handover-dir={dir}/handover",
	}}
}

// NVIDIA is the GPU plugin of NVIDIA's DRA driver, release 0.5.
func NVIDIA(program string) Driver {
	return Driver{Name: "nvidia", DriverName: "gpu.nvidia.com", Program: program, Hardware: true, Arguments: []string{
		"--node-name={node}", "--namespace=default", "--cdi-root={cdi}", "--nvidia-driver-root={hardware}/driver",
		"--container-driver-root={hardware}/driver", "--nvidia-cdi-hook-path=/bin/true", "--image-name=none",
		"--kubelet-registrar-directory-path={kubelet}/plugins_registry", "--kubelet-plugins-directory-path={kubelet}/plugins",
		"--kubeconfig={kubeconfig}",
	}, Environment: map[string]string{"NVIDIA_DRA_SYSFS_ROOT": "{hardware}/sys"}}
}

// command returns the plugin's arguments and environment on a node.
func (d Driver) command(n *node) (arguments, environment []string) {
	places := strings.NewReplacer("{node}", n.name, "{hardware}", n.path("n"), "{kubelet}", n.path("k"), "{cdi}", n.path("cdi"),
		"{state}", n.path("state"), "{cgroup}", n.path("cgroup"), "{kubeconfig}", n.path("kubeconfig"), "{dir}", n.dir)
	for _, argument := range d.Arguments {
		arguments = append(arguments, places.Replace(argument))
	}
	environment = []string{"NODE_NAME=" + n.name, "KUBECONFIG=" + n.path("kubeconfig")}
	for name, value := range d.Environment {
		environment = append(environment, name+"="+places.Replace(value))
	}
	return arguments, environment
}

// stateDirs are the directories in which a plugin keeps its files.
func (n *node) stateDirs() []string {
	return []string{n.path("cdi"), n.path("state"), filepath.Join(n.path("k"), "plugins")}
}
