data "gpufabric_secondary_network" "rail" {
  name      = "rail-0"
  namespace = "default"
}

output "cni_configuration" {
  value = jsondecode(data.gpufabric_secondary_network.rail.config)
}
