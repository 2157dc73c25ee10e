package policy

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
	"gpufabric.io/drivers/rdma/apiservertest"
)

const publicDriver = "nvcr.io/nvidia/mellanox/doca-driver:doca3.5.0-26.07-0.7.0.0-0-ubuntu24.04-amd64"

// publicPolicies reads testdata/policies.yaml.
func publicPolicies(t *testing.T) []*unstructured.Unstructured {
	t.Helper()
	content, err := os.ReadFile("testdata/policies.yaml")
	must(t, err)
	var policies []*unstructured.Unstructured
	for _, text := range strings.Split(string(content), "\n---\n")[1:] {
		policy := &unstructured.Unstructured{}
		must(t, yaml.UnmarshalStrict([]byte(text), &policy.Object))
		policies = append(policies, policy)
	}
	return policies
}

// For each policy: the sections that are not supported, and the image of its driver, which an administrator has allowed by its
// repository.
func TestPublicPoliciesRunThePublicImages(t *testing.T) {
	for _, test := range []struct{ policy, image, unserved string }{
		{"every-section", publicDriver, "docaTelemetryService ibKubernetes nicConfigurationOperator nicFeatureDiscovery nvIpam " +
			"ofedDriver.upgradePolicy.drain secondaryNetwork sriovDevicePlugin"},
		{"every-section-openshift", publicDriver, "nicFeatureDiscovery nvIpam ofedDriver.upgradePolicy.drain sriovDevicePlugin"},
		{"ipoib", publicDriver, "nvIpam ofedDriver.upgradePolicy.drain secondaryNetwork"},
		{"nvidia-ipam", publicDriver, "nvIpam ofedDriver.upgradePolicy.drain secondaryNetwork"},
		{"host-device-openshift", publicDriver, "nvIpam ofedDriver.upgradePolicy.drain sriovDevicePlugin"},
		{"openshift", publicDriver, ""},
		{"plain", publicDriver, "ofedDriver.upgradePolicy.drain secondaryNetwork"},
		{"global", publicDriver, "nvIpam ofedDriver.upgradePolicy.drain secondaryNetwork"},
		{"first-release", "mellanox/ofed-driver-5.0-2.1.8.0:ubuntu24.04-amd64", ""},
	} {
		policies := publicPolicies(t)
		i := slices.IndexFunc(policies, func(p *unstructured.Unstructured) bool { return p.GetName() == test.policy })
		if i < 0 {
			t.Errorf("there is no policy %s", test.policy)
			continue
		}
		p := &mellanox.NicClusterPolicy{}
		must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(policies[i].Object, p))
		stored, _, err := unstructured.NestedMap(policies[i].Object, "spec")
		must(t, err)
		sections, err := unserved(stored, &p.Spec)
		must(t, err)
		var missing []string
		for _, paths := range sections {
			missing = append(missing, paths...)
		}
		slices.Sort(missing)
		if got := strings.Join(missing, " "); got != test.unserved {
			t.Errorf("%s: not served are %q, want %q", test.policy, got, test.unserved)
		}
		repository, _, _ := strings.Cut(test.image, ":")
		r := &reconciler{Options: Options{Images: []string{repository}}}
		node := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{labelNIC: "true",
			labelOS: "ubuntu", labelRelease: "24.04", labelKernel: "6.8", labelArch: "amd64"}}}
		s := r.ofed(p, []metav1.PartialObjectMetadata{node}, running{})
		if len(s.objects) != 1 {
			t.Errorf("%s: the driver's section is %s: %s", test.policy, s.State, s.Message)
			continue
		}
		if got := s.objects[0].(*appsv1.DaemonSet).Spec.Template.Spec.Containers[0].Image; got != test.image {
			t.Errorf("%s: the image is %s, want %s", test.policy, got, test.image)
		}
	}
	if n := len(publicPolicies(t)); n != 9 {
		t.Errorf("%d policies are there, and 9 are tested", n)
	}
}

func TestPolicyOfEveryPublicShapeIsAccepted(t *testing.T) {
	config := apiservertest.Start(t, "../../api/crds/mellanox.com_nicclusterpolicies.yaml")
	c, err := client.New(config, client.Options{})
	must(t, err)
	policies := publicPolicies(t)
	digest := &unstructured.Unstructured{}
	must(t, yaml.Unmarshal([]byte(`{apiVersion: mellanox.com/v1alpha1, kind: NicClusterPolicy, metadata: {name: digest}, spec: {ofedDriver: {
		image: doca_driver.v2, repository: "registry.example:5000/my_mirror/mellanox",
		version: "sha256:9a831bfdf85f313b1f5749b7c9b2673bb8fff18b4ff768c9242dabaa4468e449"}}}`), &digest.Object))
	for _, policy := range append(policies, digest) {
		if err := c.Create(t.Context(), policy, client.FieldValidation(metav1.FieldValidationStrict)); err != nil {
			t.Errorf("%s: %v", policy.GetName(), err)
		}
	}
}

func TestDevicePluginWithoutConfigDoesNotMakePools(t *testing.T) {
	for content, want := range map[string]string{
		"{devicePlugin: {image: a}}":                           "ready: without devicePlugin.config no pool is made",
		"{rdmaSharedDevicePlugin: {image: a}}":                 "ready: without rdmaSharedDevicePlugin.config no pool is made",
		`{rdmaSharedDevicePlugin: {image: a, config: ""}}`:     "error: spec.rdmaSharedDevicePlugin.config has mistakes: is empty",
		`{rdmaSharedDevicePlugin: {image: a, config: "null"}}`: "error: spec.rdmaSharedDevicePlugin.config has mistakes: ",
	} {
		_, spec := specOf(t, content)
		s := (&reconciler{}).pools(&mellanox.NicClusterPolicy{Spec: *spec}, nil)
		if got := string(s.State) + ": " + s.Message; !strings.HasPrefix(got, want) || len(s.objects) > 0 {
			t.Errorf("%s: got %q with %d pools, want %q", content, got, len(s.objects), want)
		}
	}
}

func TestProbesOfADriverAreThoseOfThePolicyAndElseTheDefaults(t *testing.T) {
	probes := func(content string) string {
		_, spec := specOf(t, content)
		d := driver{kind: kindOFED, template: func(string) string { return "" }, spec: spec.OFEDDriver}
		pod := d.daemonSet("default", platform{os: "ubuntu"}).Spec.Template.Spec
		c := pod.Containers[0]
		var text []string
		for _, p := range []*corev1.Probe{c.StartupProbe, c.LivenessProbe, c.ReadinessProbe} {
			text = append(text, fmt.Sprint(p.InitialDelaySeconds, p.PeriodSeconds, p.FailureThreshold, p.TimeoutSeconds))
		}
		return strings.Join(append(text, fmt.Sprint(*pod.TerminationGracePeriodSeconds)), "; ")
	}
	for content, want := range map[string]string{
		"{ofedDriver: {image: a}}": "30 10 120 10; 10 30 1 10; 10 30 1 10; 300",
		"{ofedDriver: {image: a, terminationGracePeriodSeconds: 0, startupProbe: {periodSeconds: 20}, livenessProbe: {timeoutSeconds: 20, " +
			"failureThreshold: 5}}}": "30 20 120 10; 10 30 5 20; 10 30 1 10; 0",
		"{ofedDriver: {image: a, readinessProbe: {initialDelaySeconds: 1, periodSeconds: 2, failureThreshold: 3, timeoutSeconds: 4}}}"://
		"30 10 120 10; 10 30 1 10; 1 2 3 4; 300",
	} {
		if got := probes(content); got != want {
			t.Errorf("%s: got %s, want %s", content, got, want)
		}
	}
}

// The public image installs modules below its own /lib/modules, reads the node's release from /host/etc/os-release, which is a link to
// ../usr/lib/os-release, and ends where it cannot write /host/etc/modprobe.d.
func TestDriverMountsDirectoriesOfPublicImage(t *testing.T) {
	_, spec := specOf(t, "{ofedDriver: {image: a}}")
	d := driver{kind: kindOFED, template: func(string) string { return "" }, spec: spec.OFEDDriver, mounts: ofedMounts()}
	pod := d.daemonSet("default", platform{os: "ubuntu"}).Spec.Template.Spec
	host := map[string]string{}
	for _, v := range pod.Volumes {
		host[v.Name] = v.HostPath.Path
	}
	got := map[string]string{}
	for _, m := range pod.Containers[0].VolumeMounts {
		got[m.MountPath] = host[m.Name]
		if !m.ReadOnly {
			got[m.MountPath] += " to write"
		}
		if shared := *m.MountPropagation == corev1.MountPropagationBidirectional; shared != (m.MountPath == "/run/mellanox/drivers") {
			t.Errorf("%s: its mounts appear on the node: %v", m.MountPath, shared)
		}
	}
	want := map[string]string{
		"/run/mellanox/drivers": "/run/mellanox/drivers to write", "/etc/network": "/etc/network", "/host/etc": "/etc to write",
		"/host/usr": "/usr", "/host/lib/udev": "/lib/udev", "/run/udev": "/run/udev", "/host/lib/modules": "/lib/modules to write",
		"/mnt/drivers-inventory":       "/var/opt/mofed-container/inventory to write",
		"/etc/modprobe.d/ib_core.conf": "/etc/modprobe.d/ib_core.conf", "/dev/infiniband": "/dev/infiniband to write",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

func TestEnvironmentOfADriverHasTheDefaultsThatThePolicyDoesNotGive(t *testing.T) {
	for content, want := range map[string]string{
		"{ofedDriver: {image: a}}": "CREATE_IFNAMES_UDEV=true NVIDIA_NIC_DRIVERS_INVENTORY_PATH=/mnt/drivers-inventory",
		`{ofedDriver: {image: a, env: [{name: A, value: b}, {name: CREATE_IFNAMES_UDEV, value: "false"}]}}`: "A=b CREATE_IFNAMES_UDEV=false " +
			"NVIDIA_NIC_DRIVERS_INVENTORY_PATH=/mnt/drivers-inventory",
		`{ofedDriver: {image: a, env: [{name: NVIDIA_NIC_DRIVERS_INVENTORY_PATH, value: ""}]}}`: "NVIDIA_NIC_DRIVERS_INVENTORY_PATH= " +
			"CREATE_IFNAMES_UDEV=true",
	} {
		_, spec := specOf(t, content)
		d := driver{kind: kindOFED, template: func(string) string { return "" }, spec: spec.OFEDDriver}
		var got []string
		for _, v := range d.daemonSet("default", platform{os: "ubuntu"}).Spec.Template.Spec.Containers[0].Env {
			got = append(got, v.Name+"="+v.Value)
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s: got %q, want %s", content, got, want)
		}
	}
}
