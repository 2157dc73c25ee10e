output "selectors" {
  value = provider::gpufabric::rdma_selector(file("${path.module}/config.json"), "hca_shared_devices_a")
}
