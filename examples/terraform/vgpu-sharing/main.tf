# GPUs shared by memory and cores: kinds of slices that pods ask for by name.

provider "gpufabric" {
  config_path    = var.kubeconfig
  config_context = var.context
}

locals {
  most = 10 # slices of a GPU
}

resource "gpufabric_driver_stack" "this" {
  chart    = coalesce(var.chart, "${path.module}/../../../charts/gpufabric")
  values   = [for f in var.values_files : file(f)]
  hardware = var.hardware

  components = {
    gpus = true
  }

  lifecycle {
    postcondition {
      condition     = self.ready
      error_message = "The drivers do not run yet:\n${join("\n", self.waiting_for)}"
    }
  }
}

resource "gpufabric_vgpu_profile" "this" {
  for_each = var.slices

  name   = each.key
  mode   = "Software"
  memory = "${each.value.memory_gib}Gi"
  cores  = each.value.cores
  split  = local.most
  policy = "Binpack"

  depends_on = [gpufabric_driver_stack.this]
}
