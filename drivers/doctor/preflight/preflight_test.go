package preflight_test

import (
	"encoding/json"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/doctor/findings"
	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/drivers/doctor/snapshot"
)

const namespace = "gpufabric-system"

func TestPreflightDefaultsAreTheCharts(t *testing.T) {
	text, err := os.ReadFile("../../../charts/gpufabric/values.yaml")
	if err != nil {
		t.Fatal(err)
	}
	charts, err := preflight.Read(text)
	if err != nil {
		t.Fatal(err)
	}
	own, err := preflight.Read(nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(own, charts, cmpopts.IgnoreUnexported(preflight.Values{}), cmpopts.EquateEmpty()); diff != "" {
		t.Errorf("without values (-preflight +chart):\n%s", diff)
	}
}

func TestValuesAreMergedAsHelmMergesThem(t *testing.T) {
	v, err := preflight.Read([]byte("nodePlugins: {tolerations: [{key: team, value: a}]}\nhardware: {devRoot: /x, driverContainerRoot: null}"))
	if err != nil {
		t.Fatal(err)
	}
	if want := []corev1.Toleration{{Key: "team", Value: "a"}}; !equality.Semantic.DeepEqual(v.NodePlugins.Tolerations, want) {
		t.Errorf("tolerations %+v, want %+v", v.NodePlugins.Tolerations, want)
	}
	if v.Hardware.DevRoot != "/x" || v.Hardware.SysfsRoot != "/sys" || v.Hardware.DriverContainerRoot != "" || !v.Domains.Enabled {
		t.Errorf("%+v", v)
	}
}

func TestPlatformDecidesValuesThatAreEmpty(t *testing.T) {
	v, err := preflight.Read([]byte("platform: gke"))
	if err != nil || v.Hardware.DriverRoot != "/home/kubernetes/bin/nvidia" || v.CDI.Root != "/var/run/cdi" {
		t.Errorf("gke: %+v, %v", v.Hardware, err)
	}
	v, err = preflight.Read([]byte("platform: aks\nhardware: {driverRoot: /opt/driver}"))
	if err != nil || v.Hardware.DriverRoot != "/opt/driver" || len(v.NodePlugins.Tolerations) != 2 {
		t.Errorf("a value that is set does not take precedence: %+v, %v", v, err)
	}
	if _, err := preflight.Read([]byte("platform: eks")); err == nil || !strings.Contains(err.Error(), "eks-bottlerocket") {
		t.Errorf("an unknown platform: %v", err)
	}
	s := cluster(t)
	s.Namespaces = nil
	v, err = preflight.Read([]byte("platform: talos"))
	if err != nil {
		t.Fatal(err)
	}
	got := only(t, preflight.Run(s, v, namespace), "PodSecurity")
	if got.Result != preflight.Fails || !strings.Contains(got.Detail, "baseline") {
		t.Errorf("a platform that enforces a level by default: %+v", got)
	}
}

// only returns the check of a name.
func only(t *testing.T, checks []preflight.Check, name string) preflight.Check {
	t.Helper()
	at := slices.IndexFunc(checks, func(c preflight.Check) bool { return c.Name == name })
	if at < 0 {
		t.Fatalf("no check %q in %+v", name, checks)
	}
	return checks[at]
}

// cluster is a cluster of two nodes on which everything would work. A pod has reported the facts of each node.
func cluster(t *testing.T) *snapshot.Snapshot {
	t.Helper()
	s := &snapshot.Snapshot{Server: snapshot.Server{Version: "v1.36.3", Groups: []string{"resource.k8s.io/v1"}},
		Namespaces: []corev1.Namespace{{ObjectMeta: metav1.ObjectMeta{Name: namespace}}}}
	for _, name := range []string{"n1", "n2"} {
		s.Nodes = append(s.Nodes, corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"feature.node.kubernetes.io/pci-0302_10de.present": "true"}},
			Status: corev1.NodeStatus{NodeInfo: corev1.NodeSystemInfo{KubeletVersion: "v1.36.0", ContainerRuntimeVersion: "containerd://2.1.0",
				OperatingSystem: "linux", Architecture: "arm64"}}})
		says(t, s, name, preflight.Facts{GPUs: 4, Nodes: 4, Driver: "580.95.05", Channels: 2048, RDMA: 4, Mellanox: 4,
			Runtime: "containerd 2.1.0",
			CDI:     "on", NRI: "on"})
	}
	return s
}

// says replaces the output of a node's pod of the Jobs.
func says(t *testing.T, s *snapshot.Snapshot, node string, facts preflight.Facts) {
	t.Helper()
	s.Pods = slices.DeleteFunc(s.Pods, func(p corev1.Pod) bool { return p.Spec.NodeName == node })
	s.Pods = append(s.Pods, corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "gpufabric-preflight-" + node,
			Labels: map[string]string{"app.kubernetes.io/name": snapshot.PreflightJobs}},
		Spec: corev1.PodSpec{NodeName: node},
		Status: corev1.PodStatus{Phase: corev1.PodSucceeded, ContainerStatuses: []corev1.ContainerStatus{{
			State: corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Message: string(facts.Encode())}}}}},
	})
}

func everything(t *testing.T) preflight.Values {
	t.Helper()
	v, err := preflight.Read([]byte("gpus: {enabled: true}\nrdma: {enabled: true}\nvgpu: {enabled: true}"))
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestPreflightFindsNothingOnAHealthyCluster(t *testing.T) {
	for _, c := range preflight.Run(cluster(t), everything(t), namespace) {
		if c.Result != preflight.OK || c.Code != "" || c.Detail == "" {
			t.Errorf("%+v", c)
		}
	}
}

func TestPreflightNamesFailingChecks(t *testing.T) {
	good := preflight.Facts{GPUs: 4, Nodes: 4, Driver: "580.95.05", Channels: 2048, RDMA: 4, Mellanox: 4, CDI: "on", NRI: "on"}
	with := func(change func(*preflight.Facts)) preflight.Facts {
		f := good
		change(&f)
		return f
	}
	for name, c := range map[string]struct {
		change func(*snapshot.Snapshot)
		check  string
		result preflight.Result
		code   string
		says   string
	}{
		"the API server is old": {func(s *snapshot.Snapshot) { s.Server.Version = "v1.33.2" },
			"Kubernetes version", preflight.Fails, "KubernetesTooOld", "1.34"},
		"the API server behaves as an old one": {func(s *snapshot.Snapshot) { s.Server.Emulates = "33" },
			"Kubernetes version", preflight.Fails, "KubernetesTooOld", "emulating 1.33"},
		"the API server has fewer fields": {func(s *snapshot.Snapshot) { s.Server.Version = "v1.35.9" },
			"Kubernetes version", preflight.Warning, "NeedsKubernetesFeature", "DRADeviceTaints"},
		"the API server behaves as one with fewer fields": {func(s *snapshot.Snapshot) { s.Server.Emulates = "34" },
			"Kubernetes version", preflight.Warning, "NeedsKubernetesFeature", "v1.36.3 emulating 1.34"},
		"the scheduler forgets counters": {func(s *snapshot.Snapshot) { s.Server.Version = "v1.36.1" },
			"Kubernetes version", preflight.Warning, "NeedsKubernetesFeature", "139034"},
		"an API is off": {func(s *snapshot.Snapshot) { s.Server.Groups = []string{"apps/v1"} },
			"resource.k8s.io/v1", preflight.Fails, "DynamicResourcesOff", "--runtime-config"},
		"there is no node yet": {func(s *snapshot.Snapshot) { s.Nodes = nil },
			"nodes", preflight.Warning, "PluginNotPlaced", "no node"},
		"a taint keeps the plugins off": {func(s *snapshot.Snapshot) {
			s.Nodes[0].Spec.Taints = []corev1.Taint{{Key: "team", Value: "a", Effect: corev1.TaintEffectNoSchedule}}
		}, "nodes", preflight.Warning, "PluginNotPlaced", "n1 (team=a:NoSchedule)"},
		"a kubelet is old": {func(s *snapshot.Snapshot) { s.Nodes[1].Status.NodeInfo.KubeletVersion = "v1.33.0" },
			"kubelets", preflight.Fails, "KubeletTooOld", "n2 (v1.33.0)"},
		"containerd is too old": {func(s *snapshot.Snapshot) { s.Nodes[1].Status.NodeInfo.ContainerRuntimeVersion = "containerd://1.6.2" },
			"container runtimes", preflight.Fails, "ContainerRuntimeReadsNoCDI", "no CDI"},
		"containerd 1.7, of which no Job has read the configuration": {func(s *snapshot.Snapshot) {
			s.Nodes[1].Status.NodeInfo.ContainerRuntimeVersion, s.Pods = "containerd://1.7.2", nil
		}, "container runtimes", preflight.NotSeen, "", "--print-jobs"},
		"containerd 1.7, of which a Job has": {func(s *snapshot.Snapshot) {
			s.Nodes[1].Status.NodeInfo.ContainerRuntimeVersion = "containerd://1.7.2"
		}, "container runtimes", preflight.OK, "", "1.7"},
		"a configuration was not seen": {func(s *snapshot.Snapshot) {
			says(t, s, "n2", with(func(f *preflight.Facts) { f.CDI, f.NRI, f.Runtime = "", "", "containerd 1.7.2" }))
		}, "runtime configuration", preflight.NotSeen, "", "n2 (containerd 1.7.2)"},
		"specs are read elsewhere": {func(s *snapshot.Snapshot) {
			says(t, s, "n2", with(func(f *preflight.Facts) { f.SpecDirs = []string{"/etc/cdi", "/var/cdi"} }))
		}, "runtime configuration", preflight.Fails, "ContainerRuntimeReadsNoCDI",
			"n2 (cdi_spec_dirs is /etc/cdi, /var/cdi, without cdi.root /var/run/cdi)"},
		"specs are read by another name of the directory": {func(s *snapshot.Snapshot) {
			says(t, s, "n2", with(func(f *preflight.Facts) { f.SpecDirs = []string{"/run/cdi"} }))
		}, "runtime configuration", preflight.OK, "", "CDI is on"},
		"GPUs are another's, by a plugin that is no DaemonSet": {func(s *snapshot.Snapshot) {
			s.Nodes[0].Status.Allocatable = corev1.ResourceList{"nvidia.com/gpu": resource.MustParse("4")}
		}, "other drivers", preflight.Fails, "OtherDevicePlugin", "node n1 offers nvidia.com/gpu"},
		"the GPU operator owns a CRD": {func(s *snapshot.Snapshot) {
			s.CRDs = []metav1.PartialObjectMetadata{{ObjectMeta: metav1.ObjectMeta{Name: "computedomains.resource.nvidia.com",
				Annotations: map[string]string{"meta.helm.sh/release-name": "gpu-operator", "meta.helm.sh/release-namespace": "nvidia"}}}}
		}, "CRDs", preflight.Fails, "CRDNotOurs", "Helm release gpu-operator of namespace nvidia"},
		"another driver is there": {func(s *snapshot.Snapshot) {
			s.DaemonSets = []appsv1.DaemonSet{{ObjectMeta: metav1.ObjectMeta{Namespace: "nvidia", Name: "nvidia-dra-driver-gpu-kubelet-plugin"}}}
		}, "other drivers", preflight.Fails, "OtherDriver", "nvidia/nvidia-dra-driver-gpu-kubelet-plugin"},
		"another driver's controller of compute domains is there": {func(s *snapshot.Snapshot) {
			s.Deployments = []appsv1.Deployment{{ObjectMeta: metav1.ObjectMeta{Namespace: "nvidia", Name: "dra-driver-nvidia-gpu-controller"}}}
		}, "other drivers", preflight.Fails, "OtherDriver", "set computeDomains.enabled to false"},
		"PodSecurity is enforced": {func(s *snapshot.Snapshot) {
			s.Namespaces[0].Labels = map[string]string{"pod-security.kubernetes.io/enforce": "restricted"}
		}, "PodSecurity", preflight.Fails, "PodSecurityRefuses", "restricted"},
		"a quota is too small": {func(s *snapshot.Snapshot) {
			s.Quotas = []corev1.ResourceQuota{{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: "small"},
				Spec: corev1.ResourceQuotaSpec{Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("1")}}}}
		}, "quota", preflight.Fails, "QuotaExceeded", "small allows 1 pods"},
		"a node's driver is not loaded": {func(s *snapshot.Snapshot) {
			says(t, s, "n2", with(func(f *preflight.Facts) {
				f.Driver, f.Channels, f.Trouble, f.Says = "", 0, "DriverNotLoaded", "no kernel module is loaded"
			}))
		}, "NVIDIA's driver", preflight.Fails, "DriverNotLoaded", "n2 (no kernel module is loaded)"},
		"a node's driver is too old for domains": {func(s *snapshot.Snapshot) {
			says(t, s, "n1", with(func(f *preflight.Facts) { f.Driver = "550.54.15" }))
		}, "NVIDIA's driver", preflight.Fails, "DriverTooOld", "n1 (550.54.15"},
		"drivers differ": {func(s *snapshot.Snapshot) {
			says(t, s, "n1", with(func(f *preflight.Facts) { f.Driver = "590.10" }))
		}, "driver versions", preflight.Warning, "DriverVersionsAcrossNodes", "580.95.05 on n2, 590.10 on n1"},
		"device nodes are missing": {func(s *snapshot.Snapshot) { says(t, s, "n1", with(func(f *preflight.Facts) { f.Nodes = 3 })) },
			"GPU device nodes", preflight.Warning, "GPUsIncomplete", "4 GPUs, 3 of"},
		"the driver makes no channels": {func(s *snapshot.Snapshot) { says(t, s, "n1", with(func(f *preflight.Facts) { f.Channels = 0 })) },
			"IMEX channels", preflight.Warning, "NoIMEXChannels", "n1 (none)"},
		"CDI is switched off": {func(s *snapshot.Snapshot) { says(t, s, "n1", with(func(f *preflight.Facts) { f.CDI = "off" })) },
			"runtime configuration", preflight.Fails, "ContainerRuntimeReadsNoCDI", "CDI is off"},
		"NRI is switched off": {func(s *snapshot.Snapshot) { says(t, s, "n1", with(func(f *preflight.Facts) { f.NRI = "off" })) },
			"runtime configuration", preflight.Warning, "NotExclusive", "NRI is off"},
		"the RDMA module is not loaded": {func(s *snapshot.Snapshot) { says(t, s, "n1", with(func(f *preflight.Facts) { f.RDMA = 0 })) },
			"RDMA devices", preflight.Warning, "NoMatchingDevices", "mlx5_ib"},
		"a node cannot read its own bus": {func(s *snapshot.Snapshot) {
			says(t, s, "n1", with(func(f *preflight.Facts) { f.Unread = []string{"read the PCI bus: permission denied"} }))
		}, "unread on nodes", preflight.NotSeen, "", "n1 (read the PCI bus: permission denied)"},
		"a node has not spoken": {func(s *snapshot.Snapshot) { s.Pods = s.Pods[:1] },
			"machines", preflight.NotSeen, "", "1 of 2 nodes have reported their contents; not n2"},
		"no node has spoken": {func(s *snapshot.Snapshot) { s.Pods = nil },
			"machines", preflight.NotSeen, "", "--print-jobs"},
		"a pod's image is missing": {func(s *snapshot.Snapshot) {
			s.Pods[1].Status.ContainerStatuses[0].State = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "ErrImagePull"}}
		}, "machines", preflight.NotSeen, "", "n2 (its pod waits: ErrImagePull)"},
		"a tenant's pod speaks for a node": {func(s *snapshot.Snapshot) { s.Pods[1].Namespace = "tenant" },
			"machines", preflight.NotSeen, "", "not n2"},
		"a pod wrote something else": {func(s *snapshot.Snapshot) {
			s.Pods[1].Status.ContainerStatuses[0].State.Terminated.Message = "\x1b[2J"
		}, "machines", preflight.NotSeen, "", "n2 (what its pod wrote cannot be read"},
		"nothing may be listed": {func(s *snapshot.Snapshot) {
			*s = snapshot.Snapshot{Server: s.Server}
			for _, kind := range []string{"nodes", "pods", "daemonsets.apps", "namespaces", "resourcequotas"} {
				s.Unread = append(s.Unread, snapshot.Unread{Kind: kind, Why: snapshot.Forbidden})
			}
		}, "nodes", preflight.NotSeen, "", "cannot be listed"},
	} {
		t.Run(name, func(t *testing.T) {
			s := cluster(t)
			c.change(s)
			checks := preflight.Run(s, everything(t), namespace)
			i := slices.IndexFunc(checks, func(have preflight.Check) bool { return have.Name == c.check })
			if i < 0 {
				t.Fatalf("no check %q in %+v", c.check, checks)
			}
			got := checks[i]
			if got.Result != c.result || got.Code != c.code || !strings.Contains(got.Detail, c.says) {
				t.Errorf("%+v", got)
			}
			if f, known := findings.Find(got.Code); got.Code != "" && (!known || got.Entry != f.Entry() || got.Do != f.Do) {
				t.Errorf("%s leads to %s", got.Code, got.Entry)
			}
		})
	}
}

func TestPreflightTakesTheLastPodOfANode(t *testing.T) {
	s := cluster(t)
	old := s.Pods[0].DeepCopy()
	old.Name, old.CreationTimestamp = "gpufabric-preflight-before", metav1.Unix(1, 0)
	old.Status.ContainerStatuses[0].State.Terminated.Message = `{"gpus":4,"trouble":"DriverNotLoaded"}`
	s.Pods[0].CreationTimestamp = metav1.Unix(2, 0)
	for _, pods := range [][]corev1.Pod{{*old, s.Pods[0], s.Pods[1]}, {s.Pods[0], *old, s.Pods[1]}} {
		s.Pods = pods
		if failing := preflight.Failing(preflight.Run(s, everything(t), namespace)); len(failing) > 0 {
			t.Errorf("%+v", failing)
		}
	}
}

func TestPreflightPodsMessageFitsIntoItsStatus(t *testing.T) {
	for _, words := range []string{strings.Repeat("\x01", 10_000), strings.Repeat("ü", 10_000), strings.Repeat("<", 10_000)} {
		text := preflight.Facts{GPUs: 8, Trouble: "DriverNotFound", Says: words, Unread: []string{words[:150], words}}.Encode()
		var back preflight.Facts
		if err := json.Unmarshal(text, &back); err != nil || len(text) > 4096 || back.GPUs != 8 || back.Trouble != "DriverNotFound" {
			t.Errorf("%d bytes, %v: %+v", len(text), err, back)
		}
	}
}

func TestPreflightJobIsReadOnlyAndHasNoRights(t *testing.T) {
	fake := []byte("image: {repository: r, tag: t}\nnodePlugins: {nodeSelector: {gpu: 'yes'}}\nhardware: {driverRoot: /var/lib/fake/driver, " +
		"sysfsRoot: /var/lib/fake/sys, devRoot: /var/lib/fake/dev, procDevices: /var/lib/fake/proc/devices, hostMounts: [/var/lib/fake]}")
	for name, c := range map[string]struct {
		values []byte
		flags  []string
		mounts []string
	}{
		"the chart's values": {[]byte("image: {tag: '1'}"),
			[]string{"--driver-root=/host=/,/run/nvidia/driver", "--dev-root=/host/dev=/dev", "--sysfs-root=/sys",
				"--runtime=containerd://2.1.0", "--runtime-configuration=/host/runtime/etc/containerd=/etc/containerd"},
			[]string{"/usr>/host/usr", "/etc/alternatives>/host/etc/alternatives", "/run/nvidia>/run/nvidia", "/sys>/sys", "/dev>/host/dev",
				"/etc/containerd>/host/runtime/etc/containerd"}},
		"fake hardware": {fake, []string{"--driver-root=/var/lib/fake/driver", "--proc-devices=/var/lib/fake/proc/devices"},
			[]string{"/var/lib/fake>/var/lib/fake", "/etc/containerd>/host/runtime/etc/containerd"}},
	} {
		t.Run(name, func(t *testing.T) {
			v, err := preflight.Read(c.values)
			if err != nil {
				t.Fatal(err)
			}
			s := cluster(t)
			s.Nodes[0].Labels["gpu"], s.Nodes[1].Labels["gpu"] = "yes", "yes"
			s.Nodes[1].Status.NodeInfo.ContainerRuntimeVersion = "cri-o://1.36.0"
			jobs, err := preflight.Jobs(s, v, namespace, "")
			if err != nil || len(jobs) != 2 {
				t.Fatalf("%d Jobs, %v", len(jobs), err)
			}
			pod := jobs[0].Spec.Template.Spec
			main := pod.Containers[0]
			security := main.SecurityContext
			if *pod.AutomountServiceAccountToken || len(security.Capabilities.Add) > 0 || security.Capabilities.Drop[0] != "ALL" ||
				*security.AllowPrivilegeEscalation || security.Privileged != nil || pod.HostNetwork || pod.HostPID ||
				!*security.ReadOnlyRootFilesystem {
				t.Errorf("the pod has rights: %+v", pod)
			}
			var mounts []string
			for i, m := range main.VolumeMounts {
				if !m.ReadOnly {
					t.Errorf("%s can be written to", m.MountPath)
				}
				mounts = append(mounts, pod.Volumes[i].HostPath.Path+">"+m.MountPath)
			}
			if !slices.Equal(mounts, c.mounts) {
				t.Errorf("mounts %v, want %v", mounts, c.mounts)
			}
			for _, flag := range c.flags {
				if !slices.Contains(main.Args, flag) {
					t.Errorf("%v lack %s", main.Args, flag)
				}
			}
			if second := jobs[1].Spec.Template.Spec; second.Volumes[len(second.Volumes)-1].HostPath.Path != "/etc/crio" {
				t.Errorf("a node with CRI-O has %v", second.Volumes)
			}
		})
	}
}

func TestJobsReportsMissingImageAndNodes(t *testing.T) {
	v, err := preflight.Read([]byte("nodePlugins: {nodeSelector: {gpu: 'yes'}}"))
	if err != nil {
		t.Fatal(err)
	}
	s := cluster(t)
	if _, err := preflight.Jobs(s, v, namespace, ""); err == nil || !strings.Contains(err.Error(), "--image") {
		t.Errorf("without an image: %v", err)
	}
	if _, err := preflight.Jobs(s, v, namespace, "i"); err == nil || !strings.Contains(err.Error(), "any of the 2 nodes") {
		t.Errorf("without a node: %v", err)
	}
	s.Unread = []snapshot.Unread{{Kind: "nodes", Why: snapshot.Forbidden}}
	if _, err := preflight.Jobs(s, v, namespace, "i"); err == nil || !strings.Contains(err.Error(), "right to list nodes") {
		t.Errorf("without the right: %v", err)
	}
	if _, err := preflight.Read([]byte("nodePlugins: 7")); err == nil {
		t.Error("values that are none are read")
	}
}
