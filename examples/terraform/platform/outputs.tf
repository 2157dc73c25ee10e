output "pods_ask_for" {
  description = "Names that pods use."
  value = {
    training    = gpufabric_compute_domain.training.channel.resource_claim_template
    rdma        = gpufabric_rdma_pool.shared.resource
    development = gpufabric_vgpu_profile.development.extended_resource_name
  }
}
