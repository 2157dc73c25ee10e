output "resources" {
  description = "What pods ask for, and how many healthy devices stand behind it."
  value       = { for p in gpufabric_rdma_pool.this : p.resource => p.healthy_devices }
}

output "networks" {
  description = "What pods name in the annotation k8s.v1.cni.cncf.io/networks."
  value       = join(",", [for n in gpufabric_secondary_network.this : n.id])
}
