# terraform apply -invoke=action.gpufabric_validate_fabric.ping
action "gpufabric_validate_fabric" "ping" {
  config {
    num_nodes = 18
  }
}

# After each change of the drivers: a rack that has become slow fails the apply.
action "gpufabric_validate_fabric" "bandwidth" {
  config {
    test                  = "bandwidth"
    num_nodes             = 2
    gpus_per_node         = 4
    minimum_gb_per_second = 700
  }
}

resource "terraform_data" "drivers" {
  input = "1.0.0" # in a real configuration: gpufabric_driver_stack.this.revision

  lifecycle {
    action_trigger {
      events  = [after_update]
      actions = [action.gpufabric_validate_fabric.bandwidth]
    }
  }
}
