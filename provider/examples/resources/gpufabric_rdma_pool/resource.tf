resource "gpufabric_rdma_pool" "this" {
  name          = "hca-a"
  resource_name = "hca_shared_devices_a"
  rdma_hca_max  = 64

  node_selector = {
    match_labels = { "feature.node.kubernetes.io/pci-15b3.present" = "true" }
  }

  selectors = {
    vendors       = ["15b3"]
    link_types    = ["infiniband"]
    min_rate_gbps = 400
  }
}

# What an RDMA device plugin's config.json says.
resource "gpufabric_rdma_pool" "from_config" {
  name          = "hca-b"
  resource_name = "hca_shared_devices_b"
  rdma_hca_max  = 500
  device_nodes  = "All"
  selectors     = provider::gpufabric::rdma_selector(file("${path.module}/config.json"), "hca_shared_devices_b")
}
