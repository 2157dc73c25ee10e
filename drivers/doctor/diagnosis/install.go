package diagnosis

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/doctor/rivals"
)

const (
	labelPartOf    = "app.kubernetes.io/part-of"
	labelName      = "app.kubernetes.io/name"
	labelComponent = "app.kubernetes.io/component"
	ownName        = "gpufabric"
)

// everything checks the installation and all that it serves.
func (e *examination) everything() {
	e.install()
	for i := range e.Nodes {
		e.node(&e.Nodes[i])
	}
	e.looked = true
	e.acrossNodes()
	e.rails(nil)
	for i := range e.Domains {
		e.domain(&e.Domains[i])
	}
	for i := range e.RDMAPools {
		e.pool(&e.RDMAPools[i])
	}
	e.layouts()
	for i := range e.Pods {
		if p := &e.Pods[i]; p.Status.Phase == corev1.PodPending && e.fabricPod(p) {
			e.waiting(p)
		}
	}
}

// install checks the objects that the chart installs.
func (e *examination) install() {
	var ours []*appsv1.DaemonSet
	index(e.DaemonSets, func(d *appsv1.DaemonSet) {
		if d.Labels[labelPartOf] == ownName && strings.HasSuffix(d.Labels[labelComponent], "-plugin") {
			ours = append(ours, d)
		}
	})
	e.rivals(ours)
	if len(ours) == 0 {
		if e.Reads("daemonsets.apps") {
			e.find("NotInstalled", "cluster", "DaemonSets of all namespaces", "no node plugin of gpufabric is installed")
		}
		return
	}
	e.definitions()
	e.deployments()
	for _, d := range ours {
		e.daemonSet(d)
		if d.Labels[labelComponent] == "gpu-plugin" {
			e.gpuValues(d)
		}
	}
	e.extendedResources()
}

// rivals looks for other programs that offer the same devices, and for other owners of our CustomResourceDefinitions.
func (e *examination) rivals(ours []*appsv1.DaemonSet) {
	in := rivals.Cluster{DaemonSets: e.DaemonSets, Nodes: e.Nodes, Slices: e.Slices, CRDs: e.CRDs}
	gpus := false
	for _, d := range ours {
		in.Selector = d.Spec.Template.Spec.NodeSelector
		gpus = gpus || d.Labels[labelComponent] == "gpu-plugin"
		if d.Labels[labelComponent] == "compute-domain-plugin" {
			in.Deployments = e.Deployments
		}
		for _, c := range d.Spec.Template.Spec.Containers {
			in.OwnDevicePlugin = in.OwnDevicePlugin || slices.ContainsFunc(c.Args, func(a string) bool {
				return strings.HasPrefix(a, "--device-plugin=") && a != "--device-plugin="
			})
		}
	}
	for _, r := range rivals.Find(in) {
		switch r.Category {
		case rivals.Driver:
			e.find("OtherDriver", r.Object, r.Evidence, "%s %s", r.Object, r.Says)
		case rivals.DevicePlugin:
			// A node's GPUs are another's as long as gpufabric serves none.
			if !strings.HasPrefix(r.Object, "node ") || gpus {
				e.find("OtherDevicePlugin", r.Object, r.Evidence, "%s %s", r.Object, r.Says)
			}
		case rivals.Definition:
			// One without an owner may be ours, applied by hand (crds.install: false).
			if len(ours) > 0 && r.Owner != "" {
				e.find("CRDNotOurs", r.Object, r.Evidence, "%s %s", r.Object, r.Says)
			}
		case rivals.None, rivals.SharesRDMA:
		}
	}
}

// definitions checks the CRDs.
func (e *examination) definitions() {
	if !e.Reads("customresourcedefinitions.apiextensions.k8s.io") {
		return
	}
	there := map[string]bool{}
	for i := range e.CRDs {
		there[e.CRDs[i].Name] = true
	}
	for _, name := range []string{"computedomains.resource.nvidia.com", "rdmapools.gpufabric.io", "miglayouts.gpufabric.io",
		"vgpuprofiles.gpufabric.io"} {
		if !there[name] {
			e.find("CRDMissing", "customresourcedefinition "+name, "the list of CustomResourceDefinitions",
				"the CustomResourceDefinition %s is missing", name)
		}
	}
}

// deployments checks the controller, the webhook and the scheduler.
func (e *examination) deployments() {
	code := map[string]string{"controller": "ControllerNotReady", "webhook": "WebhookNotReady", "scheduler": "SchedulerMissing"}
	index(e.Deployments, func(d *appsv1.Deployment) {
		component := d.Labels[labelComponent]
		if d.Labels[labelPartOf] != ownName || code[component] == "" {
			return
		}
		e.ownerKinds(d)
		if d.Status.AvailableReplicas > 0 {
			return
		}
		object := "deployment " + d.Namespace + "/" + d.Name
		e.workload(object, d.Namespace, d.Name, component, d.Status.Replicas < replicas(d))
		if replicas(d) == 0 {
			e.find(code[component], object, "its spec.replicas", "%s is scaled to 0 pods", d.Name)
			return
		}
		e.find(code[component], object, "its status", "none of %d pods of %s is available", replicas(d), d.Name)
	})
}

func replicas(d *appsv1.Deployment) int32 {
	if d.Spec.Replicas == nil {
		return 1
	}
	return *d.Spec.Replicas
}

// daemonSet checks a node plugin's pods.
func (e *examination) daemonSet(d *appsv1.DaemonSet) {
	object := "daemonset " + d.Namespace + "/" + d.Name
	component := d.Labels[labelComponent]
	switch {
	case d.Status.DesiredNumberScheduled == 0 && d.Status.ObservedGeneration >= d.Generation && d.Status.ObservedGeneration > 0 &&
		len(e.Nodes) > 0:
		e.find("PluginNotPlaced", object, "its status", "%s selects none of the %d nodes (nodeSelector %v)", d.Name, len(e.Nodes),
			d.Spec.Template.Spec.NodeSelector)
	case d.Status.NumberReady < d.Status.DesiredNumberScheduled:
		before := len(e.found)
		e.workload(object, d.Namespace, d.Name, component, d.Status.CurrentNumberScheduled < d.Status.DesiredNumberScheduled)
		if len(e.found) == before {
			e.find("PluginNotReady", object, "its status", "%d of %d pods of %s are ready", d.Status.NumberReady,
				d.Status.DesiredNumberScheduled, d.Name)
		}
	}
}

// workload looks for the reason why one of our workloads has too few pods: pods that could not be created, and pods that do not
// run. lacking reports whether pods are missing, rather than not ready: an Event stays for an hour after its pod could be created.
func (e *examination) workload(object, namespace, name, component string, lacking bool) {
	index(e.Events, func(v *corev1.Event) {
		about := v.InvolvedObject
		if lacking && v.Reason == "FailedCreate" && about.Namespace == namespace && (about.Name == name || about.Kind == "ReplicaSet" &&
			strings.HasPrefix(about.Name, name+"-")) {
			e.refusedPod(object, v)
		}
	})
	for i := range e.Pods {
		if p := &e.Pods[i]; p.Namespace == namespace && p.Labels[labelComponent] == component && p.Labels[labelName] == ownName {
			e.ownPod(p)
		}
	}
}

// refusedPod reads why a pod could not be created. The messages are those of the API server's admission plugins.
func (e *examination) refusedPod(object string, v *corev1.Event) {
	from := "Event FailedCreate of " + object
	switch {
	case strings.Contains(v.Message, "violates PodSecurity"):
		e.find("PodSecurityRefuses", object, from, "%s", v.Message)
	case strings.Contains(v.Message, "exceeded quota"):
		e.find("QuotaExceeded", object, from, "%s", v.Message)
	default:
		e.find("AdmissionRefuses", object, from, "%s", v.Message)
	}
}

// ownPod checks one of our pods that should run.
func (e *examination) ownPod(p *corev1.Pod) {
	object := "pod " + p.Namespace + "/" + p.Name
	if e.image(p) {
		return
	}
	for _, s := range p.Status.ContainerStatuses {
		if s.State.Waiting != nil && s.State.Waiting.Reason == "CrashLoopBackOff" || s.State.Terminated != nil &&
			s.State.Terminated.ExitCode != 0 {
			last := cmp.Or(s.LastTerminationState.Terminated, s.State.Terminated, &corev1.ContainerStateTerminated{})
			code := "PluginCrashes"
			if p.Labels[v1beta1.LabelComputeDomain] != "" {
				code = "DaemonNotRunning"
			}
			e.find(code, object, "the pod's status", "container %s on %s has ended %d times, last with exit code %d%s", s.Name, p.Spec.NodeName,
				s.RestartCount+1, last.ExitCode, quoted(last.Message))
			return
		}
	}
}

func quoted(message string) string {
	if message = strings.TrimSpace(message); message == "" {
		return ""
	}
	return fmt.Sprintf(" (%s)", message[max(0, len(message)-300):])
}

// image looks for an image that cannot be pulled.
func (e *examination) image(p *corev1.Pod) bool {
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		if w := s.State.Waiting; w != nil && slices.Contains([]string{"ErrImagePull", "ImagePullBackOff", "InvalidImageName",
			"ErrImageNeverPull"}, w.Reason) {
			e.find("ImageNotPulled", "pod "+p.Namespace+"/"+p.Name, "the status of container "+s.Name, "image %s on node %s: %s%s", s.Image,
				p.Spec.NodeName, w.Reason, quoted(w.Message))
			return true
		}
	}
	return false
}
