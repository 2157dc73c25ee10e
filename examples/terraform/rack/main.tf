# A rack of one NVLink clique, shared by several compute domains.

provider "gpufabric" {
  config_path    = var.kubeconfig
  config_context = var.context
}

resource "gpufabric_driver_stack" "this" {
  chart    = coalesce(var.chart, "${path.module}/../../../charts/gpufabric")
  values   = [for f in var.values_files : file(f)]
  hardware = var.hardware

  lifecycle {
    postcondition {
      condition     = self.ready
      error_message = "The drivers do not run yet:\n${join("\n", self.waiting_for)}"
    }
  }
}

resource "gpufabric_compute_domain" "this" {
  for_each = var.domains

  name      = each.key
  namespace = each.value.namespace
  num_nodes = each.value.nodes

  channel = {
    resource_claim_template = "${each.key}-channel"
  }

  depends_on = [gpufabric_driver_stack.this]
}

# Read after the drivers run: which nodes share a clique.
data "gpufabric_topology" "this" {
  depends_on = [gpufabric_driver_stack.this]
}

check "domains_fit_the_rack" {
  assert {
    condition     = sum([for d in var.domains : d.nodes]) <= sum(concat([0], [for c in data.gpufabric_topology.this.cliques : length(c.nodes)]))
    error_message = "The domains have more nodes together than the cluster's NVLink cliques: a node is in one domain at a time."
  }
}
