# A training cluster with RDMA: GPUs and NICs served, the entries of an existing config.json as pools, and a network for each rail.

provider "gpufabric" {
  config_path    = var.kubeconfig
  config_context = var.context
}

locals {
  config_json = file(coalesce(var.config_json, "${path.module}/config.json"))
  pools       = { for entry in jsondecode(local.config_json).configList : entry.resourceName => entry }
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

resource "gpufabric_rdma_pool" "this" {
  for_each = local.pools

  name          = replace(lower(each.key), "_", "-")
  resource_name = each.key
  rdma_hca_max  = each.value.rdmaHcaMax
  device_nodes  = "All" # as in a config.json: a unit gives every HCA of the pool
  selectors     = provider::gpufabric::rdma_selector(local.config_json, each.key)

  depends_on = [gpufabric_driver_stack.this]
}

# Needs Multus, macvlan and whereabouts in the cluster.
resource "gpufabric_secondary_network" "this" {
  for_each = var.rails

  name          = each.key
  namespace     = var.namespace
  type          = "macvlan"
  master        = each.value.master
  resource_name = values(gpufabric_rdma_pool.this)[0].resource

  ipam = {
    range = each.value.range
  }
}
