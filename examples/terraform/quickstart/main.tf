# Installs the gpufabric drivers into a cluster and declares one compute domain.

provider "gpufabric" {
  config_path    = var.kubeconfig
  config_context = var.context
}

resource "gpufabric_driver_stack" "this" {
  chart    = coalesce(var.chart, "${path.module}/../../../charts/gpufabric")
  values   = [for f in var.values_files : file(f)]
  hardware = var.hardware

  lifecycle {
    # Drivers that do not come up in time are kept and waited for by the next apply; this makes the run fail all the same.
    postcondition {
      condition     = self.ready
      error_message = "The drivers do not run yet:\n${join("\n", self.waiting_for)}"
    }
  }
}

resource "gpufabric_compute_domain" "this" {
  name      = var.domain
  namespace = var.namespace
  num_nodes = var.nodes

  channel = {
    resource_claim_template = "${var.domain}-channel"
  }

  # The domain becomes Ready when pods that use it run on its nodes, so only its acceptance is waited for here.
  wait_for = "accepted"

  depends_on = [gpufabric_driver_stack.this]
}
