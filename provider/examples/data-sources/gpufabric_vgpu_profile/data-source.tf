data "gpufabric_vgpu_profile" "small" {
  name = "small"
}

output "device_class" {
  value = data.gpufabric_vgpu_profile.small.device_class
}
