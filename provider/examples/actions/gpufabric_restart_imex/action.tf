# terraform apply -invoke=action.gpufabric_restart_imex.training
action "gpufabric_restart_imex" "training" {
  config {
    domain    = "training"
    namespace = "default"
    nodes     = ["node-b07"] # without it, on every node of the domain
  }
}
