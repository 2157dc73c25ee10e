data "gpufabric_devices" "gpus" {
  driver = "gpu.nvidia.com"
  type   = "gpu"
}

output "free_gpus" {
  value = length([for d in data.gpufabric_devices.gpus.devices : d if length(d.claims) == 0])
}
