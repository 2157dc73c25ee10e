resource "gpufabric_secondary_network" "this" {
  name          = "rail-0"
  namespace     = "training"
  type          = "macvlan"
  master        = "ens2f0np0"
  mtu           = 9000
  resource_name = "rdma/hca_shared_devices_a"

  ipam = {
    range   = "10.56.0.0/16"
    exclude = ["10.56.0.0/28"]
  }
}
