package snapshot

import (
	"cmp"
	"encoding/json"
	"regexp"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

// The functions below keep the parts of each object that findings need. They build the kept part of tenants' objects, instead of
// removing known secrets, so that a field of a later Kubernetes is omitted until it is added here.

// keptAnnotations are the prefixes of annotations that are kept: those that gpufabric, Volcano's shares and Helm write.
func keptAnnotations() []string {
	return []string{"gpufabric.io/", "vgpu.gpufabric.io/", "resource.nvidia.com/", "volcano.sh/node-vgpu", "volcano.sh/vgpu-mode",
		"nvidia.com/use-gputype", "nvidia.com/nouse-gputype", "meta.helm.sh/", "resource.kubernetes.io/"}
}

// reduceMeta removes the API server's own fields, and all annotations but ours.
func reduceMeta(o client.Object) {
	o.SetManagedFields(nil)
	kept := map[string]string{}
	for key, value := range o.GetAnnotations() {
		if slices.ContainsFunc(keptAnnotations(), func(prefix string) bool { return strings.HasPrefix(key, prefix) }) {
			kept[key] = value
		}
	}
	if len(kept) == 0 {
		kept = nil
	}
	o.SetAnnotations(kept)
}

// plain is reduceMeta for objects without tenants' secrets.
func plain[T any, P pointer[T]](o P) { reduceMeta(o) }

func reduceNode(n *corev1.Node) {
	reduceMeta(n)
	n.Status.Images, n.Status.VolumesInUse, n.Status.VolumesAttached = nil, nil, nil
}

func reduceClass(c *resourceapi.DeviceClass) {
	reduceMeta(c)
	for i := range c.Spec.Config {
		reduceConfig(c.Spec.Config[i].Opaque)
	}
}

func reduceClaim(c *resourceapi.ResourceClaim) {
	reduceMeta(c)
	for i := range c.Spec.Devices.Config {
		reduceConfig(c.Spec.Devices.Config[i].Opaque)
	}
	if c.Status.Allocation != nil {
		for i := range c.Status.Allocation.Devices.Config {
			reduceConfig(c.Status.Allocation.Devices.Config[i].Opaque)
		}
	}
	for i := range c.Status.Devices {
		c.Status.Devices[i].Data = nil
	}
}

func reduceTemplate(t *resourceapi.ResourceClaimTemplate) {
	reduceMeta(t)
	t.Spec.ObjectMeta = metav1.ObjectMeta{}
	for i := range t.Spec.Spec.Devices.Config {
		reduceConfig(t.Spec.Spec.Devices.Config[i].Opaque)
	}
}

// reduceConfig keeps the kind of a driver's configuration, and for a compute domain the domain's identity.
func reduceConfig(opaque *resourceapi.OpaqueDeviceConfiguration) {
	if opaque == nil {
		return
	}
	var kept struct {
		APIVersion string `json:"apiVersion,omitempty"`
		Kind       string `json:"kind,omitempty"`
		DomainID   string `json:"domainID,omitempty"`
	}
	opaque.Parameters.Object = nil
	if json.Unmarshal(opaque.Parameters.Raw, &kept) != nil {
		opaque.Parameters.Raw = []byte("{}")
		return
	}
	raw, err := json.Marshal(kept)
	if err != nil { // strings alone
		raw = []byte("{}")
	}
	opaque.Parameters.Raw = raw
}

// reducePod keeps a pod's placement and state. gpufabric's own pods are reduced in the same way: their arguments are in their
// DaemonSets.
func reducePod(p *corev1.Pod) {
	reduceMeta(p)
	spec := corev1.PodSpec{
		NodeName: p.Spec.NodeName, NodeSelector: p.Spec.NodeSelector, Affinity: p.Spec.Affinity, Tolerations: p.Spec.Tolerations,
		SchedulerName: p.Spec.SchedulerName, SchedulingGates: p.Spec.SchedulingGates, ResourceClaims: p.Spec.ResourceClaims,
		HostNetwork: p.Spec.HostNetwork, PriorityClassName: p.Spec.PriorityClassName, Priority: p.Spec.Priority,
		Containers: reduceContainers(p.Spec.Containers), InitContainers: reduceContainers(p.Spec.InitContainers),
	}
	p.Spec = spec
	own := slices.Contains([]string{ownName, PreflightJobs}, p.Labels[labelName]) || p.Labels[v1beta1.LabelComputeDomain] != ""
	p.Status.EphemeralContainerStatuses = nil // for debugging; no finding needs it
	for _, statuses := range [][]corev1.ContainerStatus{p.Status.ContainerStatuses, p.Status.InitContainerStatuses} {
		for i := range statuses {
			reduceStatus(&statuses[i], own)
		}
	}
	for i := range p.Status.Conditions {
		if !slices.Contains([]corev1.PodConditionType{corev1.PodScheduled, corev1.PodReady, corev1.DisruptionTarget,
			corev1.ContainersReady, corev1.PodInitialized, corev1.PodReadyToStartContainers}, p.Status.Conditions[i].Type) {
			p.Status.Conditions[i].Message = ""
		}
	}
}

func reduceContainers(all []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for _, c := range all {
		out = append(out, corev1.Container{Name: c.Name, Image: c.Image, Resources: c.Resources})
	}
	return out
}

// reduceStatus removes the termination message of a container, and keeps the kubelet's messages on devices and images.
func reduceStatus(s *corev1.ContainerStatus, own bool) {
	s.User, s.VolumeMounts = nil, nil
	if own {
		return
	}
	for _, ended := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
		if ended != nil {
			ended.Message = about(ended.Message)
		}
	}
	if w := s.State.Waiting; w != nil {
		w.Message = about(w.Message)
	}
}

// reduceBinding keeps gpufabric's own service accounts.
func reduceBinding(b *rbacv1.ClusterRoleBinding) {
	reduceMeta(b)
	b.Subjects = subjects(b)
}

func reduceDaemonSet(d *appsv1.DaemonSet) {
	reduceMeta(d)
	reduceWorkload(d.Labels, &d.Spec.Template)
}

func reduceDeployment(d *appsv1.Deployment) {
	reduceMeta(d)
	reduceWorkload(d.Labels, &d.Spec.Template)
}

// reduceWorkload keeps images and placement. For gpufabric's own workloads it keeps the arguments, which cannot contain secrets:
// the chart has none.
func reduceWorkload(labels map[string]string, template *corev1.PodTemplateSpec) {
	own := labels[labelPartOf] == ownName
	kept := corev1.PodSpec{
		NodeSelector: template.Spec.NodeSelector, Tolerations: template.Spec.Tolerations, HostNetwork: template.Spec.HostNetwork,
		PriorityClassName: template.Spec.PriorityClassName, SchedulerName: template.Spec.SchedulerName,
	}
	for _, c := range template.Spec.Containers {
		container := corev1.Container{Name: c.Name, Image: c.Image, Ports: c.Ports, Resources: c.Resources}
		if own {
			container.Args = c.Args
		}
		kept.Containers = append(kept.Containers, container)
	}
	template.ObjectMeta = metav1.ObjectMeta{Labels: template.Labels}
	template.Spec = kept
}

// reduceEvent removes the output of containers from a message (a failed probe, a hook), and keeps messages on devices and
// placement.
func reduceEvent(e *corev1.Event) {
	reduceMeta(e)
	if !placed(e.Reason) && !strings.HasPrefix(cmp.Or(e.ReportingController, e.Source.Component), "gpufabric") &&
		!ownComponent(cmp.Or(e.Source.Component, e.ReportingController)) {
		e.Message = about(e.Message)
	}
}

// placed reports whether the reason is one of the scheduler's or of a controller's that makes pods and claims.
func placed(reason string) bool {
	return slices.Contains([]string{"FailedScheduling", "FailedCreate", "FailedResourceClaimCreation", "FailedPrepareDynamicResources",
		"NotTriggerScaleUp", "FailedCreatePodSandBox", "UnexpectedAdmissionError"}, reason)
}

// ownComponent reports whether an Event's component is one of our roles: components have the roles' names.
func ownComponent(component string) bool {
	return slices.Contains([]string{"gpu-plugin", "rdma-plugin", "vgpu-plugin", "compute-domain-plugin", "controller", "imex-daemon",
		"mps-keeper", "gpufabric-controller", "gpufabric-scheduler"}, component)
}

// The messages below are kept of words that others wrote too, such as a container's termination message or a probe's answer. Of such a
// message only names that the kubelet, the container runtime and CDI make are kept, in their places, and never the text.
var (
	// unresolved has the CDI devices that containerd and CRI-O cannot resolve: "unresolvable CDI devices a/b=c, a/b=d".
	unresolved = regexp.MustCompile(
		`(unresolvable CDI devices?|failed to inject CDI devices?)[^a-z0-9]*((?:[a-z0-9.-]+/[a-z0-9.-]+=[A-Za-z0-9_.:-]+(?:, ?)?)+)`)
	// pulled is an image that could not be pulled, as the kubelet writes it.
	pulled = regexp.MustCompile(`^(Failed to pull|Back-off pulling) image "([a-z0-9./:@_-]{1,255})"`)
)

// about extracts from a message of a tenant's container its part about CDI devices and images, in fixed words.
func about(message string) string {
	if found := pulled.FindStringSubmatch(message); found != nil {
		return found[1] + ` image "` + found[2] + `"`
	}
	if found := unresolved.FindStringSubmatch(message); found != nil {
		return "unresolvable CDI devices " + strings.TrimRight(found[2], ", ")
	}
	if strings.Contains(message, "CDI device") {
		return "CDI device error"
	}
	return ""
}
