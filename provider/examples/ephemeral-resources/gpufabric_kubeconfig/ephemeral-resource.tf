ephemeral "gpufabric_kubeconfig" "deployer" {
  namespace          = "training"
  service_account    = "deployer"
  expiration_seconds = 900
}
