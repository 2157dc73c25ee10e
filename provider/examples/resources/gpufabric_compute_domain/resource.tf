# A domain whose size is known: its pods start when all 18 nodes are in.
resource "gpufabric_compute_domain" "this" {
  name      = "rack-1"
  namespace = "training"
  num_nodes = 18

  channel = {
    resource_claim_template = "rack-1-channel"
  }
}
