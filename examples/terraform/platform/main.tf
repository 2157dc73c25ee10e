# Everything together: domains for training, RDMA, MIG for inference, slices for development.

provider "gpufabric" {
  config_path    = var.kubeconfig
  config_context = var.context
}

resource "gpufabric_driver_stack" "this" {
  chart    = coalesce(var.chart, "${path.module}/../../../charts/gpufabric")
  values   = [for f in var.values_files : file(f)]
  hardware = var.hardware

  components = {
    compute_domains = true
    gpus            = true
    rdma            = true
  }

  lifecycle {
    postcondition {
      condition     = self.ready
      error_message = "The drivers do not run yet:\n${join("\n", self.waiting_for)}"
    }
  }
}

# None of these depends on another, nor by name on the drivers: each waits until its kind is installed, and on destroy the drivers wait for all of them.
resource "gpufabric_compute_domain" "training" {
  name      = "training"
  num_nodes = 2

  channel = {
    resource_claim_template = "training-channel"
  }
}

resource "gpufabric_rdma_pool" "shared" {
  name          = "shared"
  resource_name = "hca_shared_devices_a"
  rdma_hca_max  = 64

  selectors = {
    vendors = ["15b3"]
  }
}

resource "gpufabric_mig_layout" "inference" {
  name   = "inference"
  layout = "halves"

  node_selector = {
    match_labels = var.inference_nodes
  }

  layouts = {
    halves = {
      gpus = [{ mig_devices = { "3g.40gb" = 2 } }]
    }
  }
}

resource "gpufabric_vgpu_profile" "development" {
  name   = "development"
  mode   = "Software"
  memory = "8Gi"
  cores  = 10
}
