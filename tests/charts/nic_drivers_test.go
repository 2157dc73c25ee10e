package charts

import (
	"maps"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// nicDriver is a NIC's driver as the controller writes it (drivers/rdma/policy), with fields of the pod, its container and its template's
// metadata changed.
func nicDriver(pod, container, metadata string) *unstructured.Unstructured {
	const name = "ofed-driver-amd64-ubuntu24.04-kver6.8.0-ds"
	set := object(`{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "` + name + `", "namespace": "` + namespace + `",
		"labels": {"gpufabric.io/nic-cluster-policy": "p"}}, "spec": {"selector": {"matchLabels": {"app.kubernetes.io/name": "ofed-driver"}},
		"updateStrategy": {"type": "OnDelete"}, "template": {"metadata": {"labels": {"app.kubernetes.io/name": "ofed-driver",
		"app.kubernetes.io/instance": "` + name + `"}}, "spec": {"hostNetwork": true, "automountServiceAccountToken": false,
		"priorityClassName": "system-node-critical", "tolerations": [{"operator": "Exists"}], "terminationGracePeriodSeconds": 300,
		"imagePullSecrets": [{"name": "registry"}],
		"nodeSelector": {"feature.node.kubernetes.io/pci-15b3.present": "true", "kubernetes.io/arch": "amd64"},
		"volumes": [{"name": "run-mofed", "hostPath": {"path": "/run/mellanox/drivers", "type": "DirectoryOrCreate"}},
			{"name": "etc-network", "hostPath": {"path": "/etc/network", "type": "DirectoryOrCreate"}},
			{"name": "host-etc", "hostPath": {"path": "/etc", "type": "DirectoryOrCreate"}},
			{"name": "host-usr", "hostPath": {"path": "/usr", "type": "DirectoryOrCreate"}},
			{"name": "host-udev", "hostPath": {"path": "/lib/udev", "type": "DirectoryOrCreate"}},
			{"name": "host-run-udev", "hostPath": {"path": "/run/udev", "type": "DirectoryOrCreate"}},
			{"name": "host-lib-modules", "hostPath": {"path": "/lib/modules", "type": "DirectoryOrCreate"}},
			{"name": "drivers-inventory", "hostPath": {"path": "/var/opt/mofed-container/inventory", "type": "DirectoryOrCreate"}},
			{"name": "host-ib-core", "hostPath": {"path": "/etc/modprobe.d/ib_core.conf", "type": "FileOrCreate"}},
			{"name": "dev-infiniband", "hostPath": {"path": "/dev/infiniband", "type": "DirectoryOrCreate"}}],
		"containers": [{"name": "ofed-driver", "image": "mellanox/ofed-driver-5.0:ubuntu24.04-amd64", "securityContext": {"privileged": true},
			"env": [{"name": "UNLOAD_STORAGE_MODULES", "value": "true"},
				{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
				{"name": "CREATE_IFNAMES_UDEV", "value": "true"},
				{"name": "NVIDIA_NIC_DRIVERS_INVENTORY_PATH", "value": "/mnt/drivers-inventory"}],
			"startupProbe": {"exec": {"command": ["test", "-e", "/run/mellanox/drivers/.driver-ready", "-o", "-e", "/.driver-ready"]},
				"failureThreshold": 120},
			"readinessProbe": {"exec": {"command": ["grep", "-q", "^mlx5_core ", "/proc/modules"]}},
			"volumeMounts": [{"name": "run-mofed", "mountPath": "/run/mellanox/drivers", "mountPropagation": "Bidirectional"},
				{"name": "etc-network", "mountPath": "/etc/network", "readOnly": true, "mountPropagation": "HostToContainer"},
				{"name": "host-etc", "mountPath": "/host/etc"}, {"name": "host-usr", "mountPath": "/host/usr", "readOnly": true},
				{"name": "host-udev", "mountPath": "/host/lib/udev", "readOnly": true},
				{"name": "host-run-udev", "mountPath": "/run/udev", "readOnly": true},
				{"name": "host-lib-modules", "mountPath": "/host/lib/modules"},
				{"name": "drivers-inventory", "mountPath": "/mnt/drivers-inventory"},
				{"name": "host-ib-core", "mountPath": "/etc/modprobe.d/ib_core.conf", "readOnly": true},
				{"name": "dev-infiniband", "mountPath": "/dev/infiniband"}]}]}}}}`)
	template := set.Object["spec"].(map[string]any)["template"].(map[string]any)
	spec := template["spec"].(map[string]any)
	for _, change := range []struct {
		into map[string]any
		text string
	}{{spec, pod}, {spec["containers"].([]any)[0].(map[string]any), container}, {template["metadata"].(map[string]any), metadata}} {
		maps.Copy(change.into, object("{"+change.text+"}").Object)
	}
	// The API server looks at that before it asks a policy.
	labels := template["metadata"].(map[string]any)["labels"].(map[string]any)
	set.Object["spec"].(map[string]any)["selector"] = map[string]any{"matchLabels": maps.Clone(labels)}
	return set
}

// A NIC's driver is privileged, so its image is on a list, and what it runs is the image's own program on what the controller gives it.
func TestNICDriverRunsOnlyImagesOfPolicy(t *testing.T) {
	if testing.Short() {
		t.Skip("starts etcd and kube-apiserver; -short asks for neither")
	}
	live := startServer(t)
	values := everyRight()
	values["rdma"] = map[string]any{"enabled": true, "nicClusterPolicy": map[string]any{"images": []any{"mellanox/"}}}
	live.installChart(t, values)
	policies := live.client.Resource(schema.GroupVersionResource{Group: "mellanox.com", Version: "v1alpha1", Resource: "nicclusterpolicies"})
	if _, err := policies.Create(t.Context(), object(`{"apiVersion": "mellanox.com/v1alpha1", "kind": "NicClusterPolicy", "metadata":
		{"name": "p"}, "spec": {"ofedDriver": {"image": "ofed-driver", "repository": "mellanox", "version": "5.0", "env": [
		{"name": "UNLOAD_STORAGE_MODULES", "value": "true"}, {"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]}}}`),
		metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const controller = "gpufabric-controller"
	client := live.as(t, controller, "node-a")
	try := func(pod, container, metadata string) error {
		return tryCreate(daemonSetResource, text(nicDriver(pod, container, metadata)))(t.Context(), client)
	}
	// In force: a policy refuses, and the one that looks at the NicClusterPolicy knows it.
	live.awaitPolicies(t, controller, tryCreate(daemonSetResource, text(nicDriver("", `"command": ["sh"]`, ""))),
		tryCreate(daemonSetResource, text(nicDriver("", `"env": [{"name": "X", "value": "y"}]`, ""))))
	// The server says nowhere that a policy knows the objects that it looks at.
	again, deadline := time.NewTicker(50*time.Millisecond), time.After(5*time.Minute)
	defer again.Stop()
	for err := try("", "", ""); err != nil; err = try("", "", "") {
		select {
		case <-deadline:
			t.Fatalf("a NIC's driver as the controller writes it: %v", err)
		case <-again.C:
		}
	}

	const (
		runs    = "runs the program of its image without command, arguments or hooks"
		volumes = "a NIC's driver mounts of its node what the controller mounts, each at its path, and writes to no more of it"
		nodes   = "runs on nodes with a NIC, with its node's names of hosts"
		env     = "has the variables of spec.ofedDriver.env of the NicClusterPolicy"
		token   = "a NIC's driver has no token and no service account of its own"
		refused = "is forbidden: ValidatingAdmissionPolicy 'gpufabric-controller-" // by either of two
		shares  = "share neither the PIDs nor the IPC of their node"
		nic     = `"nodeSelector": {"feature.node.kubernetes.io/pci-15b3.present": "true"}`
	)
	const peer, peerLabels = `"name": "nv-peer-mem-driver", "env": []`, `"labels": {"app.kubernetes.io/name": "nv-peer-mem-driver"}`
	for _, test := range []struct {
		name, pod, container, metadata string
		refused                        string // a part of the refusal; "" means allowed
	}{
		{"as the controller writes it", "", "", "", ""},
		{"the peer driver", `"volumes": [{"name": "gpu-driver", "hostPath": {"path": "/run/nvidia/driver"}}]`, peer + `, "volumeMounts": [{"name":
			"gpu-driver", "mountPath": "/run/nvidia/driver", "readOnly": true}]`, peerLabels, ""},
		{"without a variable", "", `"env": []`, "", ""},

		{"a command", "", `"command": ["/bin/sh", "-c", "evil"]`, "", runs},
		{"arguments", "", `"args": ["evil"]`, "", runs},
		{"another directory to run in", "", `"workingDir": "/run/mellanox/drivers"`, "", runs},
		{"a program at its start", "", `"lifecycle": {"postStart": {"exec": {"command": ["/bin/sh"]}}}`, "", runs},
		{"a program at its end", "", `"lifecycle": {"preStop": {"exec": {"command": ["/bin/sh"]}}}`, "", runs},
		{"a program in a probe", "", `"livenessProbe": {"exec": {"command": ["/bin/sh", "-c", "evil"]}}`, "", runs},
		{"a probe that asks another host", "", `"startupProbe": {"httpGet": {"host": "192.0.2.1", "port": 80}}`, "", runs},
		{"a terminal", "", `"stdin": true, "tty": true`, "", runs},
		{"a second container", `"initContainers": [{"name": "x", "image": "mellanox/ofed-driver-5.0:1"}]`, "", "", runs},
		{"another name", "", `"name": "evil", "env": []`, "", runs},
		{"another image", "", `"image": "evil/ofed-driver:1"`, "", "and no other image (rdma.nicClusterPolicy.images)"},

		{"a variable for a shell", "", `"env": [{"name": "BASH_ENV", "value": "$(evil)"}]`, "", env},
		{"another value of a variable", "", `"env": [{"name": "UNLOAD_STORAGE_MODULES", "value": "$(evil)"}]`, "", env},
		{"a variable from elsewhere", "", `"env": [{"name": "UNLOAD_STORAGE_MODULES", "valueFrom": {"configMapKeyRef": {"name": "evil", "key":
			"k"}}}]`, "", env},
		{"another field in a variable", "", `"env": [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]`, "", env},
		{"another value of a default", "", `"env": [{"name": "NVIDIA_NIC_DRIVERS_INVENTORY_PATH", "value": "/run/mellanox/drivers"}]`, "", env},
		{"a default from elsewhere", "", `"env": [{"name": "CREATE_IFNAMES_UDEV", "valueFrom": {"configMapKeyRef": {"name": "evil", "key":
			"k"}}}]`, "", env},
		{"a Secret in a variable", "", `"env": [{"name": "NODE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]`, "", refused},
		{"a Secret as variables", "", `"envFrom": [{"secretRef": {"name": "s"}}]`, "", "see no Secret"},
		{"a ConfigMap as variables", "", `"envFrom": [{"configMapRef": {"name": "s"}}]`, "", runs},
		{"the peer driver with a variable", `"volumes": []`, `"name": "nv-peer-mem-driver", "volumeMounts": []`, peerLabels, env},

		{"the node's root", `"volumes": [{"name": "modules", "hostPath": {"path": "/"}}]`, `"volumeMounts": [{"name": "modules", "mountPath":
			"/lib/modules", "readOnly": true}]`, "", volumes},
		{"a directory over its programs", "", `"volumeMounts": [{"name": "run-mofed", "mountPath": "/usr/bin"}]`, "", volumes},
		{"a part of a directory", "", `"volumeMounts": [{"name": "run-mofed", "mountPath": "/run/mellanox/drivers", "subPath":
			"x"}]`, "", volumes},
		{"the node's modules over its own", `"volumes": [{"name": "modules", "hostPath": {"path": "/lib/modules"}}]`,
			`"volumeMounts": [{"name": "modules", "mountPath": "/lib/modules"}]`, "", volumes},
		{"the node's configuration over its own", `"volumes": [{"name": "host-etc", "hostPath": {"path": "/etc"}}]`,
			`"volumeMounts": [{"name": "host-etc", "mountPath": "/etc"}]`, "", volumes},
		{"the node's programs to write to", `"volumes": [{"name": "host-usr", "hostPath": {"path": "/usr"}}]`,
			`"volumeMounts": [{"name": "host-usr", "mountPath": "/host/usr"}]`, "", volumes},
		{"a directory twice", `"volumes": [{"name": "host-etc", "hostPath": {"path": "/etc"}}]`,
			`"volumeMounts": [{"name": "host-etc", "mountPath": "/host/etc"}, {"name": "host-etc", "mountPath": "/etc"}]`, "", volumes},
		{"the node's configuration for the peer driver", `"volumes": [{"name": "host-etc", "hostPath": {"path": "/etc"}}]`, peer +
			`, "volumeMounts": [{"name": "host-etc", "mountPath": "/host/etc"}]`, peerLabels, volumes},
		{"a directory of another name", `"volumes": [{"name": "evil", "hostPath": {"path": "/lib/modules"}}]`, `"volumeMounts": []`, "", volumes},
		{"an empty directory", `"volumes": [{"name": "modules", "emptyDir": {}}]`, `"volumeMounts": [{"name": "modules", "mountPath":
			"/lib/modules", "readOnly": true}]`, "", volumes},
		{"a ConfigMap", `"volumes": [{"name": "modules", "configMap": {"name": "evil"}}]`, `"volumeMounts": []`, "", "see no Secret"},

		{"the node's processes", `"hostPID": true`, "", "", shares},
		{"the node's memory", `"hostIPC": true`, "", "", shares},
		{"the container's processes", `"shareProcessNamespace": true`, "", "", nodes},
		{"a role's service account", `"serviceAccountName": "gpufabric-gpu-plugin"`, "", "", token},
		{"a token", `"automountServiceAccountToken": true`, "", "", token},
		{"nodes without a NIC", `"nodeSelector": {}`, "", "", nodes},
		{"one node of its choice", nic + `, "nodeName": "node-a"`, "", "", nodes},
		{"another scheduler", `"schedulerName": "evil"`, "", "", nodes},
		{"another runtime", `"runtimeClassName": "evil"`, "", "", nodes},
		{"other addresses of hosts", `"hostAliases": [{"ip": "192.0.2.1", "hostnames": ["archive.ubuntu.com"]}]`, "", "", nodes},
		{"another name server", `"dnsConfig": {"nameservers": ["192.0.2.1"]}`, "", "", nodes},
		{"a sysctl", `"hostNetwork": false, "securityContext": {"sysctls": [{"name": "kernel.core_pattern", "value":
			"|/evil"}]}`, "", "", nodes},
		{"a claim's devices", `"resourceClaims": [{"name": "c", "resourceClaimName": "c"}]`, `"resources": {"claims":
			[{"name": "c"}]}`, "", nodes},
		{"every GPU", "", `"resources": {"limits": {"nvidia.com/gpu": "8"}}`, "", nodes},
		{"a port of its node", "", `"ports": [{"containerPort": 10250, "hostPort": 10250}]`, "", nodes},
		{"an annotation that injects devices", "", "", `"annotations": {"cdi.k8s.io/x": "gpu.nvidia.com/gpu=all"}`, nodes},
		{"the labels of the webhook", "", "", `"labels": {"app.kubernetes.io/name": "ofed-driver",
			"app.kubernetes.io/component": "webhook"}`, nodes},
	} {
		err := try(test.pod, test.container, test.metadata)
		switch {
		case test.refused == "" && err != nil:
			t.Errorf("%s: %v", test.name, err)
		case test.refused != "" && (err == nil || !strings.Contains(err.Error(), test.refused)):
			t.Errorf("%s: got %v, want an error with %q", test.name, err, test.refused)
		case test.refused != "":
			t.Logf("attacker sees: %v", err)
		}
	}
}
