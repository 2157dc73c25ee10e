package computedomains

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"

	"gpufabric.io/tests/simcluster/domain"
)

func TestRefusalOfAClaimOfAnotherNamespace(t *testing.T) {
	owner := shared.Namespace(t)
	owner.Domain("d", 1)
	uid := owner.AwaitDomain("d", func(d domain.Domain) bool { return d.UID != "" }).UID

	thief := shared.Namespace(t)
	thief.Apply(`
apiVersion: resource.k8s.io/v1
kind: ResourceClaimTemplate
metadata: {name: stolen}
spec:
  spec:
    devices:
      requests: [{name: channel, exactly: {deviceClassName: compute-domain-default-channel.nvidia.com}}]
      config:
      - requests: [channel]
        opaque:
          driver: compute-domain.nvidia.com
          parameters: {apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomainChannelConfig, domainID: %q}
`, uid)
	thief.Pod("thief", "stolen", "")
	pod := thief.AwaitPod("thief", func(pod *corev1.Pod) bool {
		return pod != nil && strings.Contains(pod.Status.Message, "namespace")
	})
	if pod.Status.Phase != corev1.PodPending {
		t.Errorf("the pod is %s", pod.Status.Phase)
	}
	thief.AwaitEvent("thief", "namespace", thief.Name)
	// Long enough for several more attempts of the kubelet.
	time.Sleep(5 * time.Second)
	if pod := thief.AwaitPod("thief", func(*corev1.Pod) bool { return true }); pod.Status.Phase != corev1.PodPending {
		t.Errorf("after more attempts the pod is %s", pod.Status.Phase)
	}
	if d := owner.AwaitDomain("d", func(domain.Domain) bool { return true }); len(d.Nodes) != 0 {
		t.Errorf("the domain took up the node of another's pod: %+v", d.Nodes)
	}
}

func TestRefusalNamesTheFieldOfAWrongDomain(t *testing.T) {
	n := shared.Namespace(t)
	for name, test := range map[string]struct{ spec, want string }{
		"a negative number of nodes": {"{numNodes: -1, channel: {resourceClaimTemplate: {name: x}}}", "spec.numNodes"},
		"a template without a name": {`{numNodes: 1, channel: {resourceClaimTemplate: {name: ""}}}`,
			"spec.channel.resourceClaimTemplate.name"},
		"an allocation mode not known": {"{numNodes: 1, channel: {allocationMode: Most, resourceClaimTemplate: {name: x}}}",
			"spec.channel.allocationMode"},
	} {
		t.Run(name, func(t *testing.T) {
			err := n.TryApply("{apiVersion: resource.nvidia.com/v1beta1, kind: ComputeDomain, metadata: {name: wrong}, spec: %s}", test.spec)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("got %v; want a refusal that names %s", err, test.want)
			}
		})
	}
}
