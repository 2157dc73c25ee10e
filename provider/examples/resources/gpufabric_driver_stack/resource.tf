resource "gpufabric_driver_stack" "this" {
  chart = "${path.module}/gpufabric-0.1.0.tgz"

  components = {
    compute_domains = true
    gpus            = true
    rdma            = true
  }

  # Where a driver container keeps NVIDIA's driver.
  hardware = {
    driver_root = "/run/nvidia/driver"
  }

  values = [yamlencode({
    controller = { replicas = 2 }
    # Forms that GPUs are offered in: whole everywhere, and shared or cut where somebody wants it.
    gpus = { forms = {
      default = { form = "whole" }
      nodes = [
        { nodeSelector = { matchLabels = { "example.com/use" = "notebooks" } }, form = "shareable" },
        { nodeSelector = { matchLabels = { "example.com/use" = "inference" } }, form = "mig", migProfiles = ["1g.10gb"] },
      ]
    } }
  })]

  lifecycle {
    # Drivers that do not come up in time are kept, and the next apply waits for them. This makes the run fail all the same.
    postcondition {
      condition     = self.ready
      error_message = join("\n", self.waiting_for)
    }
  }
}
