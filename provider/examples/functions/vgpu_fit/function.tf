# How many slices of 10 GiB and 20 % an L40S holds: 4, limited by memory.
output "slices" {
  value = provider::gpufabric::vgpu_fit(49140, 10240, 20, 10).slices
}
