package charts

import (
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
)

// pods are the pod templates among objects, by the object's name.
func pods(t *testing.T, objects []Object) map[string]corev1.PodTemplateSpec {
	t.Helper()
	out := map[string]corev1.PodTemplateSpec{}
	for _, object := range objects {
		template, found, err := unstructured.NestedMap(object.Object, "spec", "template")
		if err != nil {
			t.Fatal(err)
		}
		if !found || object.GetKind() == "CustomResourceDefinition" {
			continue
		}
		var pod corev1.PodTemplateSpec
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, &pod); err != nil {
			t.Fatalf("%s: %v", object.GetName(), err)
		}
		out[object.GetName()] = pod
	}
	return out
}

// mounts describes what a container has of its node: "host path -> path inside", with "(ro)" where it may not write.
func mounts(pod corev1.PodTemplateSpec, container corev1.Container) []string {
	paths := map[string]string{}
	for _, volume := range pod.Spec.Volumes {
		if volume.HostPath != nil {
			paths[volume.Name] = volume.HostPath.Path
		}
	}
	var out []string
	for _, mount := range container.VolumeMounts {
		path, ok := paths[mount.Name]
		if !ok {
			continue
		}
		line := path + " -> " + mount.MountPath
		if mount.ReadOnly {
			line += " (ro)"
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

func TestNodePodsMountOnlyNeededDirectories(t *testing.T) {
	for _, test := range []struct {
		name     string
		hardware map[string]any
		mounts   []string // in addition to those of the kubelet, of CDI and of the plugin itself
		flags    []string
	}{
		{"a driver on the host or in a container, whichever there is", nil,
			[]string{"/dev -> /host/dev (ro)", "/etc/alternatives -> /host/etc/alternatives (ro)", "/run/nvidia -> /run/nvidia (ro)",
				"/sys -> /sys (ro)", "/usr -> /host/usr (ro)"},
			[]string{"--driver-root=/host=/,/run/nvidia/driver", "--sysfs-root=/sys", "--dev-root=/host/dev=/dev", "--own-dev=/dev",
				"--proc-devices=/proc/devices"}},
		{"a driver in /opt, and no driver container", map[string]any{"driverDirectories": []any{"/usr", "/opt/nvidia"},
			"driverContainerRoot": ""},
			[]string{"/dev -> /host/dev (ro)", "/opt/nvidia -> /host/opt/nvidia (ro)", "/sys -> /sys (ro)", "/usr -> /host/usr (ro)"},
			[]string{"--driver-root=/host=/"}},
		// It is mounted and unmounted below a directory that stays.
		{"a driver container keeps its path", map[string]any{"driverRoot": "/run/nvidia/driver"},
			[]string{"/dev -> /host/dev (ro)", "/run/nvidia -> /run/nvidia (ro)", "/sys -> /sys (ro)"},
			[]string{"--driver-root=/run/nvidia/driver", "--dev-root=/host/dev=/dev"}},
		{"one host mount covers what lies in it", map[string]any{
			"driverRoot": "/fake/driver", "sysfsRoot": "/fake/sys", "devRoot": "/fake/dev", "procDevices": "/fake/proc/devices",
			"hostMounts": []any{"/fake"}},
			[]string{"/fake -> /fake"},
			[]string{"--driver-root=/fake/driver", "--sysfs-root=/fake/sys", "--dev-root=/fake/dev", "--proc-devices=/fake/proc/devices"}},
		{"a directory whose name only begins alike is mounted too", map[string]any{"driverRoot": "/fake-driver", "hostMounts": []any{"/fake"}},
			[]string{"/dev -> /host/dev (ro)", "/fake -> /fake", "/fake-driver -> /fake-driver (ro)", "/sys -> /sys (ro)"}, nil},
		{"a proc elsewhere brings its directory", map[string]any{"procDevices": "/snapshot/proc/devices", "driverRoot": "/opt/driver"},
			[]string{"/dev -> /host/dev (ro)", "/opt/driver -> /opt/driver (ro)", "/snapshot/proc -> /snapshot/proc (ro)", "/sys -> /sys (ro)"},
			[]string{"--proc-devices=/snapshot/proc/devices"}},
		{"a host mount given twice is mounted once", map[string]any{"hostMounts": []any{"/opt/data", "/opt/data"}, "driverRoot": "/opt/driver"},
			[]string{"/dev -> /host/dev (ro)", "/opt/data -> /opt/data", "/opt/driver -> /opt/driver (ro)", "/sys -> /sys (ro)"}, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			values := map[string]any{}
			if test.hardware != nil {
				values["hardware"] = test.hardware
			}
			pod := pods(t, renderValues(t, "gpufabric", values))["gpufabric-compute-domain-plugin"]
			container := pod.Spec.Containers[0]
			want := append([]string{
				"/var/lib/gpufabric/compute-domain-plugin -> /var/lib/gpufabric/compute-domain-plugin",
				"/var/lib/gpufabric/drain -> /var/lib/gpufabric/drain",
				"/var/lib/kubelet/plugins/compute-domain.nvidia.com -> /var/lib/kubelet/plugins/compute-domain.nvidia.com",
				"/var/lib/kubelet/plugins_registry -> /var/lib/kubelet/plugins_registry",
				"/var/run/cdi -> /var/run/cdi",
				"/sys/fs/cgroup -> /host/sys/fs/cgroup (ro)",
			}, test.mounts...)
			slices.Sort(want)
			if diff := cmp.Diff(want, mounts(pod, container)); diff != "" {
				t.Errorf("mounts (-want +rendered):\n%s", diff)
			}
			for _, flag := range test.flags {
				if !slices.Contains(container.Args, flag) {
					t.Errorf("no flag %s in %v", flag, container.Args)
				}
			}
		})
	}
}

func TestContainersHaveOnlyNeededPrivilege(t *testing.T) {
	// The comment on hardware.privileged in the values, and each template, say why these are privileged.
	privileged := map[string][]string{
		"gpufabric as it comes":             {"gpufabric-compute-domain-plugin"},
		"gpufabric on fake hardware":        nil,
		"gpufabric with a driver container": {"gpufabric-compute-domain-plugin"},
		"gpufabric with everything on": {"gpufabric-compute-domain-plugin", "gpufabric-gpu-plugin", "gpufabric-mps-keeper",
			"gpufabric-vgpu-plugin"},
		"fake-hardware as it comes":        {"fake-hardware"},
		"fake-hardware with everything on": {"fake-hardware"},
	}
	for _, rendering := range renderings(t) {
		t.Run(rendering.name, func(t *testing.T) {
			var got []string
			for name, pod := range pods(t, rendering.objects) {
				if pod.Spec.HostPID || pod.Spec.HostIPC || pod.Spec.HostNetwork && name != "gpufabric-rdma-plugin" {
					t.Errorf("%s shares a namespace of the host", name)
				}
				for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
					security := container.SecurityContext
					if security == nil || security.ReadOnlyRootFilesystem == nil || !*security.ReadOnlyRootFilesystem {
						t.Errorf("%s/%s may write its root file system", name, container.Name)
						continue
					}
					if security.Privileged != nil && *security.Privileged {
						got = append(got, name)
						continue
					}
					if security.Capabilities == nil || !slices.Equal(security.Capabilities.Drop, []corev1.Capability{"ALL"}) {
						t.Errorf("%s/%s keeps capabilities", name, container.Name)
					}
					if security.SeccompProfile == nil || security.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
						if of := pod.Spec.SecurityContext; of == nil || of.SeccompProfile == nil ||
							of.SeccompProfile.Type != corev1.SeccompProfileTypeRuntimeDefault {
							t.Errorf("%s/%s has not the runtime's seccomp profile", name, container.Name)
						}
					}
					if security.AllowPrivilegeEscalation == nil || *security.AllowPrivilegeEscalation {
						t.Errorf("%s/%s may escalate", name, container.Name)
					}
				}
			}
			slices.Sort(got)
			if diff := cmp.Diff(privileged[rendering.name], got); diff != "" {
				t.Errorf("privileged pods (-known +rendered):\n%s", diff)
			}
		})
	}
}

// everythingWithVerbs is everything, and also opens HCAs for their events.
func everythingWithVerbs() map[string]any {
	values := everything()
	values["rdma"] = map[string]any{"enabled": true, "verbsEvents": true}
	return values
}

// TestPrivilegedRolesHaveReasonInValues also counts them: the fourth needs vgpu.enabled, the fifth rdma.verbsEvents.
func TestPrivilegedRolesHaveReasonInValues(t *testing.T) {
	content, err := os.ReadFile("../../charts/gpufabric/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		name   string
		values map[string]any
		most   int
	}{
		{"with compute domains, GPUs, MPS and RDMA", map[string]any{"gpus": on(), "rdma": on()}, 3},
		{"with shares for Volcano besides", everything(), 4},
		{"with the events of HCAs besides", everythingWithVerbs(), 5},
	} {
		count := 0
		for name, pod := range pods(t, renderValues(t, "gpufabric", test.values)) {
			for _, container := range append(pod.Spec.InitContainers, pod.Spec.Containers...) {
				if p := container.SecurityContext.Privileged; p == nil || !*p {
					continue
				}
				count++
				role := strings.TrimPrefix(name, "gpufabric-")
				if !regexp.MustCompile(`(?m)^  #   ` + role + ` +\S`).Match(content) {
					t.Errorf("%s: %s is privileged, and the values do not say why", test.name, name)
				}
			}
		}
		if count > test.most {
			t.Errorf("%s: %d roles are privileged, want %d at most", test.name, count, test.most)
		}
	}
}

// A tenant may take over a program that parses the tenant's files. So this one has nothing that an attacker could use.
func TestMonitorMountsOnlyFilesThatItReads(t *testing.T) {
	pod := pods(t, renderValues(t, "gpufabric", everything()))["gpufabric-vgpu-monitor"]
	container := pod.Spec.Containers[0]
	want := []string{"/var/lib/gpufabric/vgpu-plugin -> /var/lib/gpufabric/vgpu-plugin (ro)"}
	if diff := cmp.Diff(want, mounts(pod, container)); diff != "" {
		t.Errorf("mounts (-want +rendered):\n%s", diff)
	}
	security := container.SecurityContext
	if *security.Privileged || len(security.Capabilities.Add) > 0 || pod.Spec.HostNetwork {
		t.Errorf("its rights: %+v", security)
	}
}

// Only tenants' directories need mounts that propagate to the node. The API server refuses such a mount in an unprivileged
// container.
func TestNodePodsPropagateOnlyMountsOfTenants(t *testing.T) {
	keeperless := everything()
	keeperless["gpus"] = map[string]any{"enabled": true, "mpsKeeper": map[string]any{"enabled": false}}
	unlimited := everything()
	unlimited["gpus"] = map[string]any{"enabled": true, "limits": "none"}
	unbounded := everything()
	unbounded["gpus"] = map[string]any{"enabled": true, "limiterBytes": 0}
	unprivileged := everything()
	unprivileged["hardware"] = map[string]any{"privileged": false}
	for _, test := range []struct {
		name   string
		values map[string]any
		want   []string
	}{
		{"by default", everything(), []string{"gpufabric-gpu-plugin /var/lib/gpufabric/gpu-plugin",
			"gpufabric-mps-keeper /run/gpufabric/mps", "gpufabric-vgpu-plugin /var/lib/gpufabric/vgpu-plugin"}},
		{"without the MPS keeper", keeperless, []string{"gpufabric-gpu-plugin /run/gpufabric/mps",
			"gpufabric-gpu-plugin /var/lib/gpufabric/gpu-plugin", "gpufabric-vgpu-plugin /var/lib/gpufabric/vgpu-plugin"}},
		{"without the library for claims", unlimited, []string{"gpufabric-mps-keeper /run/gpufabric/mps",
			"gpufabric-vgpu-plugin /var/lib/gpufabric/vgpu-plugin"}},
		{"with it and no bound", unbounded, []string{"gpufabric-mps-keeper /run/gpufabric/mps",
			"gpufabric-vgpu-plugin /var/lib/gpufabric/vgpu-plugin"}},
		{"on fake hardware", unprivileged, nil},
	} {
		var got []string
		for name, pod := range pods(t, renderValues(t, "gpufabric", test.values)) {
			for _, mount := range pod.Spec.Containers[0].VolumeMounts {
				if p := mount.MountPropagation; p != nil && *p == corev1.MountPropagationBidirectional {
					got = append(got, name+" "+mount.MountPath)
				}
			}
		}
		slices.Sort(got)
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s (-want +rendered):\n%s", test.name, diff)
		}
	}
}

func TestContainersRunImageOfValues(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0a", 32)
	for _, test := range []struct{ name, tag, digest, want string }{
		{"without a tag it is the chart's appVersion", "", "", "registry.example/gpufabric:" + load(t, "gpufabric").AppVersion()},
		{"with a tag it is that", "v9", "", "registry.example/gpufabric:v9"},
		{"with a digest it is that", "", digest, "registry.example/gpufabric@" + digest},
	} {
		t.Run(test.name, func(t *testing.T) {
			values := everything()
			values["image"] = map[string]any{"repository": "registry.example/gpufabric", "tag": test.tag, "digest": test.digest}
			values["imagePullSecrets"] = []any{map[string]any{"name": "registry-credentials"}}
			for name, pod := range pods(t, renderValues(t, "gpufabric", values)) {
				for _, container := range pod.Spec.Containers {
					if container.Image != test.want {
						t.Errorf("%s runs %s, want %s", name, container.Image, test.want)
					}
				}
				if len(pod.Spec.ImagePullSecrets) != 1 {
					t.Errorf("%s has pull secrets %v", name, pod.Spec.ImagePullSecrets)
				}
			}
		})
	}
}

func TestChartsPinOtherImagesByDigest(t *testing.T) {
	digest := "sha256:" + strings.Repeat("0b", 32)
	for _, test := range []struct {
		chart  string
		values map[string]any
		want   string
	}{
		{"fake-hardware", map[string]any{"image": map[string]any{"digest": digest}}, "ghcr.io/gpufabric/fakefabric@" + digest},
		{"gpufabric", map[string]any{"scheduler": map[string]any{"enabled": true, "image": map[string]any{"digest": digest}}},
			"ghcr.io/gpufabric/gpufabric-scheduler@" + digest},
	} {
		var images []string
		for _, pod := range pods(t, renderValues(t, test.chart, test.values)) {
			for _, container := range pod.Spec.Containers {
				images = append(images, container.Image)
			}
		}
		if !slices.Contains(images, test.want) {
			t.Errorf("%s runs %v, want %s among them", test.chart, images, test.want)
		}
	}
}

func TestChartsRejectTagBesideDigest(t *testing.T) {
	image := func(tag, digest string) map[string]any { return map[string]any{"tag": tag, "digest": digest} }
	digest := "sha256:" + strings.Repeat("0c", 32)
	for _, test := range []struct {
		chart  string
		values map[string]any
		want   string
	}{
		{"gpufabric", map[string]any{"image": image("v9", digest)}, "image.tag=v9 and image.digest=" + digest},
		{"fake-hardware", map[string]any{"image": image("v9", digest)}, "image.tag=v9 and image.digest=" + digest},
		{"gpufabric", map[string]any{"scheduler": map[string]any{"enabled": true, "image": image("v9", digest)}}, "and so does the tag v9"},
		{"gpufabric", map[string]any{"image": image("v8", ""), "scheduler": map[string]any{"enabled": true, "image": image("", digest)}},
			"and so does the tag v8"},
		{"gpufabric", map[string]any{"image": image("", "sha256:12")}, "image.digest"},
		{"gpufabric", map[string]any{"image": image("0.1.0@"+digest, "")}, "image.tag"},
		{"gpufabric", map[string]any{"scheduler": map[string]any{"image": image("", "12")}}, "scheduler.image.digest"},
		{"fake-hardware", map[string]any{"image": image("", "SHA256:12")}, "image.digest"},
	} {
		_, err := Render(load(t, test.chart), test.values, Cluster{})
		if err == nil || !strings.Contains(strings.ReplaceAll(err.Error(), "/", "."), strings.ReplaceAll(test.want, "/", ".")) {
			t.Errorf("%s with %v: error %v, want one with %q", test.chart, test.values, err, test.want)
		}
	}
}

// TestPodTemplateChangesOnlyWithImage checks that a new version of the chart restarts no driver whose image is the same.
func TestPodTemplateChangesOnlyWithImage(t *testing.T) {
	for _, name := range []string{"gpufabric", "fake-hardware"} {
		values := map[string]any{"image": map[string]any{"tag": "same"}}
		before, after := load(t, name), load(t, name)
		after.Metadata.Version, after.Metadata.AppVersion = "99.0.0", "99.0.0"
		was, err := Render(before, values, Cluster{})
		if err != nil {
			t.Fatal(err)
		}
		is, err := Render(after, values, Cluster{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(pods(t, was), pods(t, is)); diff != "" {
			t.Errorf("%s: a new chart version alone restarts pods:\n%s", name, diff)
		}
	}
}

func TestTemplatesDoNotRenderLeftovers(t *testing.T) {
	for _, rendering := range renderings(t) {
		for _, object := range rendering.objects {
			for _, trace := range []string{"<no value>", "%!", "map["} {
				if strings.Contains(object.YAML, trace) {
					t.Errorf("%s, %s: %q in\n%s", rendering.name, object.Template, trace, object.YAML)
				}
			}
		}
	}
}

func TestRDMAPluginMovesLinksOnlyWhenRuntimeReportsPods(t *testing.T) {
	for _, test := range []struct {
		name, socket string
		capabilities []corev1.Capability
		namespaces   bool
	}{
		{"by default it may move nothing", "", nil, false},
		{"with the runtime's socket it may, and sees pods' namespaces", "/run/nri/nri.sock", []corev1.Capability{"NET_ADMIN", "SYS_ADMIN"}, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			values := map[string]any{"rdma": map[string]any{"enabled": true, "nriSocket": test.socket}}
			pod := pods(t, renderValues(t, "gpufabric", values))["gpufabric-rdma-plugin"]
			container := pod.Spec.Containers[0]
			if diff := cmp.Diff(test.capabilities, container.SecurityContext.Capabilities.Add); diff != "" {
				t.Error(diff)
			}
			if got := slices.Contains(container.Args, "--nri-socket="+test.socket); got != (test.socket != "") {
				t.Errorf("arguments %v", container.Args)
			}
			if got := slices.Contains(mounts(pod, container), "/var/run/netns -> /var/run/netns (ro)"); got != test.namespaces {
				t.Errorf("mounts %v", mounts(pod, container))
			}
		})
	}
}

func TestRDMAPluginSetsInterfacesUpOnlyOnRequest(t *testing.T) {
	for _, test := range []struct {
		name       string
		interfaces map[string]any
		capability bool
		argument   string
	}{
		{"by default", map[string]any{}, false, ""},
		{"up", map[string]any{"up": true}, true, "--interfaces-up=true"},
		{"an MTU", map[string]any{"mtu": 9000}, true, "--interfaces-mtu=9000"},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := pods(t, renderValues(t, "gpufabric", map[string]any{"rdma": map[string]any{"enabled": true,
				"interfaces": test.interfaces}}))["gpufabric-rdma-plugin"]
			container := pod.Spec.Containers[0]
			if got := slices.Equal(container.SecurityContext.Capabilities.Add, []corev1.Capability{"NET_ADMIN"}); got != test.capability {
				t.Errorf("capabilities %v", container.SecurityContext.Capabilities.Add)
			}
			if test.argument != "" && !slices.Contains(container.Args, test.argument) {
				t.Errorf("arguments %v", container.Args)
			}
		})
	}
}

func TestRDMAPluginIsPrivilegedOnlyWithVerbsEvents(t *testing.T) {
	for _, hears := range []bool{false, true} {
		pod := pods(t, renderValues(t, "gpufabric", map[string]any{"rdma": map[string]any{"enabled": true,
			"verbsEvents": hears}}))["gpufabric-rdma-plugin"]
		container := pod.Spec.Containers[0]
		if got := *container.SecurityContext.Privileged; got != hears {
			t.Errorf("with verbsEvents %t the plugin's privileged is %t", hears, got)
		}
		if got := slices.Contains(container.Args, "--verbs-events"); got != hears {
			t.Errorf("with verbsEvents %t the arguments are %v", hears, container.Args)
		}
	}
}

// TestGPUPluginMountsKubeletDeviceRecordWhenDevicePluginServesGPUs: it writes there only where it is the device plugin itself.
func TestGPUPluginMountsKubeletDeviceRecordWhenDevicePluginServesGPUs(t *testing.T) {
	const directory = "/var/lib/kubelet/device-plugins -> /var/lib/kubelet/device-plugins"
	for _, test := range []struct {
		name   string
		values map[string]any
		want   string
	}{
		{"claims alone", map[string]any{"gpus": on()}, ""},
		{"nvidia.com/gpu", map[string]any{"gpus": map[string]any{"enabled": true, "devicePlugin": []any{"all"}}}, directory},
		{"vgpu-plugin beside it", map[string]any{"gpus": on(), "vgpu": on()}, directory + " (ro)"},
		{"both", map[string]any{"gpus": map[string]any{"enabled": true,
			"devicePlugin": []any{"GPU-00000000-0000-0000-0000-000000000000"}}, "vgpu": on()}, directory},
	} {
		t.Run(test.name, func(t *testing.T) {
			pod := pods(t, renderValues(t, "gpufabric", test.values))["gpufabric-gpu-plugin"]
			got := slices.DeleteFunc(mounts(pod, pod.Spec.Containers[0]), func(mount string) bool { return !strings.HasPrefix(mount, directory) })
			if strings.Join(got, ", ") != test.want {
				t.Errorf("mounts %v, want %q", got, test.want)
			}
		})
	}
}

// TestGPUPluginChangesDriversOnlyWithPassthrough: off, its pod and the classes are as without the value.
func TestGPUPluginChangesDriversOnlyWithPassthrough(t *testing.T) {
	for _, passes := range []bool{false, true} {
		manifests := renderValues(t, "gpufabric", map[string]any{"gpus": map[string]any{"enabled": true, "limits": "none",
			"passthrough": map[string]any{"enabled": passes}}})
		pod := pods(t, manifests)["gpufabric-gpu-plugin"]
		all := mounts(pod, pod.Spec.Containers[0])
		for mount, want := range map[string]bool{"/sys -> /sys": passes, "/sys -> /sys (ro)": !passes, "/proc -> /host/proc (ro)": passes} {
			if slices.Contains(all, mount) != want {
				t.Errorf("passthrough %t: mounts %v, want %s: %t", passes, all, mount, want)
			}
		}
		class := slices.ContainsFunc(manifests, func(o Object) bool { return o.GetName() == "vfio.gpu.nvidia.com" })
		if args := pod.Spec.Containers[0].Args; slices.Contains(args, "--passthrough") != passes || class != passes {
			t.Errorf("passthrough %t: arguments %v, class %t", passes, args, class)
		}
	}
}

func TestGPUPluginMountsFabricManagerSocketOnlyWhenNamed(t *testing.T) {
	for _, socket := range []string{"", "/run/nvidia-fabricmanager/socket"} {
		manifests := renderValues(t, "gpufabric", map[string]any{"gpus": map[string]any{"enabled": true, "limits": "none",
			"passthrough": map[string]any{"enabled": true, "fabricManager": socket}}})
		pod := pods(t, manifests)["gpufabric-gpu-plugin"]
		named := socket != ""
		const directory = "/run/nvidia-fabricmanager -> /run/nvidia-fabricmanager (ro)"
		if all := mounts(pod, pod.Spec.Containers[0]); slices.Contains(all, directory) != named {
			t.Errorf("socket %q: mounts %v", socket, all)
		}
		if args := pod.Spec.Containers[0].Args; slices.Contains(args, "--fabric-manager="+socket) != named {
			t.Errorf("socket %q: arguments %v", socket, args)
		}
	}
}
