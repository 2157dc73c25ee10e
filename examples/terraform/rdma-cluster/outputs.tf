output "resources" {
  description = "What pods ask for. `kubectl get rdmapools` tells how many healthy devices stand behind it now."
  value       = [for p in gpufabric_rdma_pool.this : p.resource]
}

output "networks" {
  description = "What pods name in the annotation k8s.v1.cni.cncf.io/networks."
  value       = join(",", [for n in gpufabric_secondary_network.this : n.id])
}
