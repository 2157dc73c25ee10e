output "resources" {
  description = "What a pod asks for in one line of its limits, by kind of slice."
  value       = { for name, p in gpufabric_vgpu_profile.this : name => p.extended_resource_name }
}

output "slices_per_gpu" {
  description = "How many slices of each kind one GPU holds, and what limits them."
  value       = { for name, s in var.slices : name => provider::gpufabric::vgpu_fit(var.gpu_memory_mib, s.memory_gib * 1024, s.cores, local.most) }
}
