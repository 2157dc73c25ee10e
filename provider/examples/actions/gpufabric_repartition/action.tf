# terraform apply -invoke=action.gpufabric_repartition.inference
action "gpufabric_repartition" "inference" {
  config {
    mig_layout = "inference"

    timeouts = {
      invoke = "30m" # pods get their termination grace period
    }
  }
}
