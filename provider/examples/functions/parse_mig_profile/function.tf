output "slices" {
  value = provider::gpufabric::parse_mig_profile("3g.40gb").gpu_slices # 3
}
