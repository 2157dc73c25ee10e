data "gpufabric_capacity" "small" {
  mig_profile = "1g.10gb"
}

output "small_instances_left" {
  value = data.gpufabric_capacity.small.free
}
