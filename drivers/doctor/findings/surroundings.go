package findings

// surroundings are causes in the cluster, the installation and the scheduling, most of which no other component reports.
func surroundings() []Finding {
	return []Finding{
		{"APIServerSilent", Cluster, "Look at the API server and at the network to it; the kubeconfig may name another one."},
		{"APIServerThrottles", Cluster, "Look at the API server's priority and fairness (metric apiserver_flowcontrol_rejected_requests_total)."},
		{"KubernetesTooOld", Cluster, "Upgrade the control plane to Kubernetes 1.34 or later."},
		{"KubeletTooOld", Cluster, "Upgrade the kubelets of these nodes to 1.34 or later."},
		{"DynamicResourcesOff", Cluster, "Let the API server serve resource.k8s.io/v1: remove it from --runtime-config, and the gate " +
			"DynamicResourceAllocation=false."},
		{"ClockSkew", Cluster, "Set the node's clock (chrony, systemd-timesyncd): tokens and certificates are refused by clocks that differ."},

		{"NotInstalled", Install, "Install the chart: docs/install.md."},
		{"CRDMissing", Install, "Install or upgrade the chart, which brings its CustomResourceDefinitions."},
		{"CRDNotOurs", Install, "Install with crds.takeOver=true and Helm's --take-ownership, and keep the other owner from applying its CRD " +
			"again: docs/install.md, beside the GPU operator."},
		{"ClassMissing", Install, "Name a DeviceClass that is there, or enable the component of the chart that brings it."},
		{"OtherDriver", Install, "Uninstall the other driver, or keep one of the two off the node: two drivers would hand out the same devices " +
			"(docs/install.md, take over)."},
		{"OtherDevicePlugin", Install, "Uninstall the other device plugin, or give gpus.devicePlugin the GPUs that it is to have."},
		{"PodSecurityRefuses", Install, "Label the namespace pod-security.kubernetes.io/enforce=privileged, or use another namespace."},
		{"QuotaExceeded", Install, "Raise the ResourceQuota that the message names, or ask for less."},
		{"AdmissionRefuses", Install, "Read the message: an admission policy or a webhook of the cluster refuses the pod."},
		{"ImageNotPulled", Install, "Make the image available to the node: registry, name, tag, pull secret."},
		{"ControllerNotReady", Install, "Look at the controller's pods and their log."},
		{"WebhookNotReady", Install, "Look at the webhook's pods; until they are ready, what they would check is refused or passes unchecked."},
		{"PluginNotPlaced", Install, "Compare nodePlugins.nodeSelector and nodePlugins.tolerations with the nodes' labels and taints."},

		{"NodeNotReady", Node, "Look at the node's kubelet and container runtime."},
		{"NodeCordoned", Node, "Run kubectl uncordon when the node may be used again."},
		{"NodeTaintNotTolerated", Node, "Give the pod a toleration, or remove the taint."},

		{"PluginCrashes", Plugin, "Read the log of the container before: kubectl logs --previous."},
		{"PluginNotReady", Plugin, "Read the pod's log and Events: its readiness probe names the socket that does not answer."},
		{"PluginNotRunning", Plugin, "Look at the DaemonSet's Events: the node has no pod of it."},
		{"PluginNotRegistered", Plugin, "Restart the plugin's pod on the node; if it stays so, look at kubelet.root and the kubelet's log."},

		{"SlicesMissing", Slice, "Read the plugin's log on the node: it runs and publishes no device."},
		{"SlicesIncomplete", Slice, "Wait for the plugin to publish the rest; if it lasts, read its log."},

		{"PodNotScheduledYet", Scheduler, "Wait, and look at the scheduler if it lasts: nothing that the doctor sees keeps the pod."},
		{"PodGated", Scheduler, "Find what removes the pod's scheduling gate: a queue such as Kueue, or a controller of yours."},
		{"GPUBeingCut", Scheduler, "Wait: the GPU gets its new devices within seconds. If it lasts, look at the node's MIGLayout and " +
			"gpu-plugin."},
		{"SchedulerMissing", Scheduler, "Correct schedulerName, or start that scheduler (scheduler.enabled for gpufabric-scheduler)."},
		{"SchedulerRefuses", Scheduler, "The message has the scheduler's own words."},
		{"ClaimMissing", Scheduler, "Create the ResourceClaim that the pod names, in the pod's namespace."},
		{"ClaimTemplateMissing", Scheduler,
			"Create the ResourceClaimTemplate that the pod names, in the pod's namespace; one of a ComputeDomain " +
				"comes with the domain."},
		{"ClaimInUse", Scheduler,
			"Give each pod its own claim by a template, or wait: the claim is allocated on a node where the pod cannot go."},
		{"NodesExcluded", Scheduler, "Loosen nodeSelector or affinity, or label a node that has such devices."},
		{"NoSuchDevice", Scheduler, "Compare the class and its selectors with what nodes publish: kubectl get resourceslices -o yaml."},
		{"NoSuchForm", Scheduler, "Change the GPUs' form on a node by its label gpufabric.io/gpu-forms: gpufabric doctor gpu has the command."},
		{"SelectorFails", Scheduler, "Guard the attribute with 'name in device.attributes[...]', or name one that the devices have."},
		{"DevicesTaken", Scheduler, "Wait for the claims that the message names, or end them."},
		{"DevicesTooFew", Scheduler, "Ask for fewer devices, or for nodes that have as many."},
		{"ShareTooLarge", Scheduler, "Ask for less memory or fewer cores, or for another model."},
		{"ExtendedResourceMissing", Scheduler,
			"No node and no DeviceClass offers a resource of this name: correct it, or enable what serves it."},
		{"NoRoomForPod", Scheduler, "Ask for less CPU or memory, or make room."},
		{"UnexpectedAdmissionError", Scheduler, "Read the pod's message: docs/troubleshooting.md has a row for each sentence."},
	}
}
