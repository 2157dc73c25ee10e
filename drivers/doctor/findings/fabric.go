package findings

// fabric are the reasons of compute domains, RDMA pools and rails.
func fabric() []Finding {
	return []Finding{
		{"TemplateNameTaken", Claim, "Delete the ResourceClaimTemplate, or name another in the ComputeDomain."},
		{"OwnerNotUsable", Claim, "Name a workload by KIND/NAME in gpufabric.io/owner, of a kind that computeDomains.owners lists."},
		{"Deleting", Claim, "Wait for the pods that the message names, or delete them."},
		{"ReconcileFailed", Plugin, "Read the message; the controller tries again."},
		{"WaitingForNodes", Peers, "Look at the pods of the domain that are not running; lower numNodes if there are not as many."},
		{"WaitingForDaemons", Peers, "Look at the IMEX daemons' pods on the nodes that the message names."},
		{"NodesInterrupted", Peers, "Look at the nodes that the message names, and at their IMEX daemons' pods."},
		{"DaemonsDisconnected", Peers, "Let the pods of the nodes that the message names reach each other on TCP port 50000."},
		{"NodesGone", Node, "Delete pods that are bound to the nodes that the message names, so that others take their place."},
		{"DaemonNotRunning", Peers, "Look at the IMEX daemon's pod: its container does not run."},
		{"DaemonNotReady", Peers, "Let the nodes reach each other on TCP port 50000: NetworkPolicies, the CNI and firewalls."},
		{"IMEXDaemonFailed", Peers, "Read the message: nvidia-imex ended with its last words."},
		{"IMEXDaemonStarved", Peers, "Give the node less to do: nvidia-imex waits for a processor or a disk there."},
		{"IMEXSessionEnded", Peers, "Start the job again if its pods share memory across nodes: the driver took what they imported."},
		{"IMEXPeersNotUpdated", Peers, "Delete the daemon's pod if the domain stays not Ready."},
		{"AuthorityChanged", Peers, "Restore Secret gpufabric-imex-authority, or delete the domain's DaemonSet when no job shares memory."},
		{"AuthorityMissing", Peers, "Restore Secret gpufabric-imex-authority, or delete the domain's DaemonSet when no job shares memory."},
		{"DaemonsBehind", Peers, "Nothing: each daemon is current when its pod next starts."},
		{"StatusFieldsDropped", Peers, "Apply gpufabric's CRD of ComputeDomain again: helm upgrade. Domains are served meanwhile."},
		{"DeletedUnderPods", Peers, "Start the pods again: the memory that they shared is gone."},
		{"FewerNodesInClique", Peers, "Put the domain's pods on nodes of one clique by affinity on nvidia.com/gpu.clique."},

		{"InvalidSpec", Claim, "Correct the fields that the message names."},
		{"NoMatchingDevices", Slice, "Compare the selectors with the nodes' devices: gpufabric doctor rdma on a node shows how."},
		{"ClaimedByOthers", Slice, "Narrow the selectors of one of the two pools."},
		{"DevicesDown", Slice, "Look at cable, switch and subnet manager."},
		{"SomeDevicesDown", Slice, "Look at status.nodes of the pool; then at cable, switch and subnet manager."},
		{"NoUnits", Slice, "Set rdmaHcaMax to the number of pods that share the pool's devices on a node: at least one for each device."},
		{"ExclusiveMode", Container, "Use claims with network: Exclusive, or run rdma system set netns shared on the node."},
		{"RailMTUDiffers", Peers, "Set one MTU on all interfaces of the rail: rdma.interfaces.mtu, or the node's network configuration."},
		{"RailRateDiffers", Peers, "Look at the port, its cable and its switch port: it came up slower than its rail."},
		{"RailLinkLayerDiffers", Peers, "Set one link layer on all NICs of the rail: mlxconfig LINK_TYPE."},
		{"NICFirmwareDiffers", Peers, "Bring the NICs of one model to one firmware version."},
		{"NoGPUDirect", Peers, "Load nvidia_peermem, or use a driver and a kernel with dma-buf."},
	}
}

// well are the reasons that mean that all is well.
func well() []Finding {
	var out []Finding
	for _, code := range []string{"Prepared", "AllNodesReady", "NoNodesRequired", "NothingDegraded", "AllDaemonsCurrent", "AuthorityKept",
		"AllDevicesHealthy", "AddressesLeft", "NoConflicts", "Applied", "ByDemand", "LayoutOrdered", "LayoutChanged", "DevicesHidden",
		"DevicesShown", "Fits", "NodeLabel",
		"ChartRule", "ChartDefault", "LastRun", "DriverReady", "GPUHealthy", "GPUsPluggedIn", "GPUsReadAgain", "ShareLimits"} {
		out = append(out, Finding{Code: code})
	}
	return out
}
