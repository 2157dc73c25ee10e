package findings

// claims are the reasons of failed prepares.
func claims() []Finding {
	return []Finding{
		{"InvalidConfig", Claim, "Correct the field that the message names in the claim template, and create the pod again."},
		{"NotADaemon", Claim, "Name the claim template of a ComputeDomain of the pod's namespace."},
		{"NotInDomainNamespace", Claim, "Make a ComputeDomain in the pod's namespace, and name its claim template."},
		{"DomainDeleted", Claim, "Delete the pod: its ComputeDomain is being deleted."},
		{"SharingContradicts", Claim, "Give all requests on the GPU the same sharing, or make a claim for each."},
		{"MPSNotForShares", Claim, "Remove the MPS configuration, or ask for a whole GPU."},
		{"IntervalNotForShares", Claim, "Remove interval, or ask for a whole GPU."},

		{"ClaimNotRead", Prepare, "Look at the network between node and API server."},
		{"DeviceInUse", Prepare, "Wait for the other claim, or delete its pod."},
		{"DeviceUnknown", Prepare, "Delete the claim or its pod; the scheduler chooses another device."},
		{"DeviceGone", Prepare, "Delete the pod, so that it is scheduled again."},
		{"InternalError", Prepare, "Report it with the plugin's log: it is a mistake in the driver."},
		{"Interrupted", Prepare, "Wait: the kubelet tries again with the next plugin."},
		{"Stopped", Prepare, "Wait: the kubelet tries again with the next plugin."},
		{"TimedOut", Prepare, "Wait; the Events before this one say what the claim waits for."},
		{"PrepareFailed", Prepare, "Read the message: it says what was tried, on what, and why it failed."},
		{"GPUInMIGMode", Prepare, "Run nvidia-smi -i N -mig 0 on the node, or make instances."},
		{"GPUNeedsReset", Prepare, "Run gpufabric drain, then reset the GPU as the message says."},
		{"GPUPartitioned", Prepare, "Remove the instances with nvidia-smi mig -dci and -dgi, or claim MIG devices."},
		{"MIGDeviceGone", Prepare, "Restart the plugin's pod on the node and delete the claim."},
		{"PlacementOccupied", Prepare, "Remove the instance with the commands that the message names."},
		{"MPSNotStarted", Prepare, "Look at the pods gpufabric-mps-keeper and at gpus.mpsDir."},
		{"SharingNotReset", Prepare, "Read the message; it is tried again."},
		{"SharingNotSet", Prepare, "Read the message, which has what nvidia-smi or NVML said."},
		{"NotExclusive", Prepare, "Read the message: the device cannot be given with network: Exclusive."},
		{"IMEXModeChanged", Prepare, "Set computeDomains.imex to host again, or make the ComputeDomain again."},
		{"WaitingForChannel", Prepare, "Read the message: delete ComputeDomains that nobody needs, which frees their channels."},
		{"WaitingForIMEXSession", Prepare, "Wait for the pods of the other mode on the node, or delete the pod so that another node takes it."},
		{"WaitingForController", Prepare, "Look at the controller's pods and their log: the claim waits for what it writes."},
		{"WaitingForIMEXDaemon", Prepare, "Look at the daemon's pod in gpufabric's namespace."},

		{"SharesRefused", Container, "Read the message, which says why the node refused the pod its shares, and create the pod again."},
		{"ContainerRuntimeReadsNoCDI", Container, "Switch CDI on in the container runtime, with the chart's cdi.root among its directories."},
		{"ContainerRuntimeNotWatched", Container, "Nothing, as long as containers have their devices."},
		{"CDIDeviceUnresolved", Container, "Let cdi_spec_dirs of the container runtime have the chart's cdi.root."},
		{"RDMADeviceNotInPodNetwork", Container, "Use network: Exclusive or host networking, or run rdma system set netns shared."},
		{"RDMAInterfaceIncomplete", Container, "Read the message: an address or a route of the interface cannot be in the pod's network."},
	}
}
