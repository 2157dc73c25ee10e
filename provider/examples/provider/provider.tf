terraform {
  required_providers {
    gpufabric = {
      source = "gpufabric/gpufabric"
    }
  }
}

# By a kubeconfig file. Without any of config_path, config_paths, host and in_cluster, KUBECONFIG is used.
provider "gpufabric" {
  config_path = "~/.kube/config"
  context     = "gpu-cluster"
}

# By address, with a command that fetches tokens and fetches a new one when the old one has expired.
provider "gpufabric" {
  alias                  = "by_address"
  host                   = "https://10.0.0.1:6443"
  cluster_ca_certificate = file("${path.module}/ca.crt")

  exec = {
    api_version = "client.authentication.k8s.io/v1"
    command     = "my-login"
    args        = ["token", "--cluster", "gpu-cluster"]
  }
}
