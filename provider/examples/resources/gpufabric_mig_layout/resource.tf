resource "gpufabric_mig_layout" "this" {
  name   = "inference"
  layout = "mixed"

  node_selector = {
    match_labels = { pool = "inference" }
  }

  layouts = {
    mixed = {
      gpus = [
        { devices = [0, 1], mig_devices = { "1g.10gb" = 7 } },
        { devices = [2, 3], mig_devices = { "3g.40gb" = 2 } },
      ]
    }
  }
}

# The layouts of a configuration file of mig-parted.
resource "gpufabric_mig_layout" "from_file" {
  name    = "legacy"
  layout  = "all-1g.10gb"
  layouts = provider::gpufabric::mig_parted(file("${path.module}/mig.yaml"))
}
