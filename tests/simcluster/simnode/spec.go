package simnode

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	oci "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	resourcehelper "k8s.io/kubernetes/pkg/api/v1/resource"
	"k8s.io/kubernetes/pkg/fieldpath"
	"k8s.io/kubernetes/third_party/forked/golang/expansion"
	"tags.cncf.io/container-device-interface/pkg/cdi"
)

// newContainer determines what the container would receive, writes it as an OCI runtime's config.json, and returns how to run
// it.
func (w *worker) newContainer(ctx context.Context, spec *corev1.Container, volumes map[string]string) (*container, error) {
	pod := w.pod()
	env, err := w.environment(ctx, spec)
	if err != nil {
		return nil, fmt.Errorf("container %s: %w", spec.Name, err)
	}
	bundle := &oci.Spec{Version: oci.Version, Process: &oci.Process{}, Linux: &oci.Linux{}, Hostname: pod.Name}
	expand := expansion.MappingFuncFor(env)
	for _, arg := range append(append([]string{}, spec.Command...), spec.Args...) {
		bundle.Process.Args = append(bundle.Process.Args, expansion.Expand(arg, expand))
	}
	for name, value := range env {
		bundle.Process.Env = append(bundle.Process.Env, name+"="+value)
	}
	for _, mount := range spec.VolumeMounts {
		if source, ok := volumes[mount.Name]; ok {
			mode := "rw"
			if mount.ReadOnly {
				mode = "ro"
			}
			bundle.Mounts = append(bundle.Mounts, oci.Mount{
				Destination: mount.MountPath, Source: filepath.Join(source, mount.SubPath), Type: "bind", Options: []string{"rbind", mode},
			})
		}
	}
	if !pod.Spec.HostNetwork {
		bundle.Mounts = append(bundle.Mounts, oci.Mount{Destination: "/etc/hosts", Source: w.hostsFile(), Type: "bind",
			Options: []string{"rbind", "rw"}})
	}
	if err := w.addDevices(ctx, bundle, spec); err != nil {
		return nil, fmt.Errorf("container %s: %w", spec.Name, err)
	}
	if err := w.writeBundle(spec.Name, bundle); err != nil {
		return nil, err
	}

	paths := containerPaths{node: w.node.paths, mounts: mountPaths(bundle.Mounts)}
	run := Container{
		Node: w.node.config.Name, Namespace: pod.Namespace, Pod: pod.Name, PodUID: pod.UID, Name: spec.Name, Image: spec.Image,
		Address: w.address, Real: paths.real, Env: map[string]string{}, Bundle: BundleFile(w.node.config.Dir, string(pod.UID), spec.Name),
	}
	report := terminationLog(w.dir, spec.Name)
	for _, arg := range bundle.Process.Args {
		if flag, value, isFlag := strings.Cut(arg, "="); isFlag && value == spec.TerminationMessagePath {
			arg = flag + "=" + report // the kubelet mounts the file there
		}
		run.Args = append(run.Args, paths.argument(arg))
	}
	for _, variable := range bundle.Process.Env {
		name, value, _ := strings.Cut(variable, "=")
		run.Env[name] = paths.variable(value)
	}
	if token, ok := paths.mounts.Real("/var/run/secrets/kubernetes.io/serviceaccount/token"); ok {
		run.REST = w.node.config.Access.Token(token)
	}
	return &container{worker: w, spec: spec, run: run, owned: w.node.config.Runtime.Owns(spec.Image)}, nil
}

func mountPaths(mounts []oci.Mount) Paths {
	var mappings []Mapping
	for _, m := range mounts {
		mappings = append(mappings, Mapping{Path: m.Destination, Real: m.Source})
	}
	return NewPaths(mappings...)
}

// addDevices adds what the DRA drivers and device plugins gave: CDI devices through the CDI library, the rest by hand.
func (w *worker) addDevices(ctx context.Context, bundle *oci.Spec, spec *corev1.Container) error {
	pod := w.pod()
	var names []string
	if w.node.dra != nil {
		resources, err := w.node.dra.GetResources(pod, spec)
		if err != nil {
			return err
		}
		for _, device := range resources.CDIDevices {
			names = append(names, device.Name)
		}
	}
	options, err := w.node.device.GetDeviceRunContainerOptions(ctx, pod, spec)
	if err != nil {
		return err
	}
	if options != nil {
		for _, variable := range options.Envs {
			bundle.Process.Env = append(bundle.Process.Env, variable.Name+"="+variable.Value)
		}
		for _, mount := range options.Mounts {
			bundle.Mounts = append(bundle.Mounts, oci.Mount{Destination: mount.ContainerPath, Source: mount.HostPath, Type: "bind",
				Options: []string{"rbind"}})
		}
		for _, device := range options.Devices {
			bundle.Linux.Devices = append(bundle.Linux.Devices, deviceNode(device.PathOnHost, device.PathInContainer))
		}
		for _, device := range options.CDIDevices {
			names = append(names, device.Name)
		}
	}
	if len(names) == 0 {
		return nil
	}
	// No automatic refresh: it would take an inotify instance a container.
	registry, err := cdi.NewCache(cdi.WithAutoRefresh(false), cdi.WithSpecDirs(w.cdiDirs()...))
	if err != nil {
		return fmt.Errorf("read the node's CDI specs: %w", err)
	}
	if unresolved, err := registry.InjectDevices(bundle, names...); err != nil {
		return fmt.Errorf("inject CDI devices (unresolved: %v): %w", unresolved, err)
	}
	return nil
}

// deviceNode describes the device at a path of this machine under another name. It has no numbers where fake hardware is made
// of plain files, because device nodes could not be made.
func deviceNode(real, path string) oci.LinuxDevice {
	node := oci.LinuxDevice{Path: path, Type: "c"}
	var stat unix.Stat_t
	if err := unix.Stat(real, &stat); err == nil && stat.Mode&unix.S_IFMT == unix.S_IFCHR {
		node.Major, node.Minor = int64(unix.Major(stat.Rdev)), int64(unix.Minor(stat.Rdev))
	}
	return node
}

// cdiDirs are the container runtimes' defaults. Later ones take precedence.
func (w *worker) cdiDirs() []string {
	var dirs []string
	for _, name := range []string{"/etc/cdi", "/var/run/cdi"} {
		if real, ok := w.node.paths.Real(name); ok {
			dirs = append(dirs, real)
		}
	}
	return dirs
}

func (w *worker) writeBundle(name string, bundle *oci.Spec) error {
	content, err := json.MarshalIndent(bundle, "", "  ")
	if err != nil {
		return fmt.Errorf("encode the bundle of container %s: %w", name, err)
	}
	if err := os.MkdirAll(w.dir, 0o755); err != nil {
		return fmt.Errorf("make the pod's directory: %w", err)
	}
	if err := os.WriteFile(BundleFile(w.node.config.Dir, string(w.pod().UID), name), content, 0o644); err != nil {
		return fmt.Errorf("write the bundle: %w", err)
	}
	return nil
}

// BundleFile is the file in which the node in nodeDir stores what a container received, as an OCI runtime's config.json.
func BundleFile(nodeDir, podUID, container string) string {
	return filepath.Join(nodeDir, containersDir, podUID, container+".json")
}

// environment is the container's environment without additions by devices.
func (w *worker) environment(ctx context.Context, spec *corev1.Container) (map[string]string, error) {
	pod := w.pod()
	env := map[string]string{}
	for _, from := range spec.EnvFrom {
		if from.ConfigMapRef == nil {
			continue // no pod of ours takes its environment from a secret
		}
		object, err := w.node.client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, from.ConfigMapRef.Name, metav1.GetOptions{})
		if apierrors.IsNotFound(err) && from.ConfigMapRef.Optional != nil && *from.ConfigMapRef.Optional {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("environment from ConfigMap %s: %w", from.ConfigMapRef.Name, err)
		}
		for name, value := range object.Data {
			env[from.Prefix+name] = value
		}
	}
	for _, variable := range spec.Env {
		value, err := w.variable(ctx, spec, variable, env)
		if err != nil {
			return nil, fmt.Errorf("environment variable %s: %w", variable.Name, err)
		}
		env[variable.Name] = value
	}
	return env, nil
}

func (w *worker) variable(ctx context.Context, spec *corev1.Container, variable corev1.EnvVar, env map[string]string) (string, error) {
	pod, from := w.pod(), variable.ValueFrom
	switch {
	case from == nil:
		return expansion.Expand(variable.Value, expansion.MappingFuncFor(env)), nil
	case from.FieldRef != nil:
		return w.field(from.FieldRef.FieldPath)
	case from.ResourceFieldRef != nil:
		if from.ResourceFieldRef.ContainerName != "" {
			return resourcehelper.ExtractResourceValueByContainerName(from.ResourceFieldRef, pod, from.ResourceFieldRef.ContainerName)
		}
		return resourcehelper.ExtractContainerResourceValue(from.ResourceFieldRef, spec)
	case from.ConfigMapKeyRef != nil:
		object, err := w.node.client.CoreV1().ConfigMaps(pod.Namespace).Get(ctx, from.ConfigMapKeyRef.Name, metav1.GetOptions{})
		if err != nil {
			return "", fmt.Errorf("from ConfigMap %s: %w", from.ConfigMapKeyRef.Name, err)
		}
		return object.Data[from.ConfigMapKeyRef.Key], nil
	}
	return "", nil // from a secret: there is none here
}

func (w *worker) field(path string) (string, error) {
	pod := w.pod()
	switch path {
	case "spec.nodeName":
		return pod.Spec.NodeName, nil
	case "spec.serviceAccountName":
		return pod.Spec.ServiceAccountName, nil
	case "status.podIP", "status.podIPs":
		return w.address, nil
	case "status.hostIP", "status.hostIPs":
		return w.node.config.Addresses.Node(), nil
	}
	return fieldpath.ExtractFieldPathAsString(pod, path)
}
