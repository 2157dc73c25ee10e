terraform {
  required_providers {
    gpufabric = {
      source = "gpufabric/gpufabric"
    }
  }
}

# By a kubeconfig file. Where a block names no cluster, KUBE_CONFIG_PATH, KUBE_HOST or KUBECONFIG of the environment does.
provider "gpufabric" {
  config_path    = "~/.kube/config"
  config_context = "gpu-cluster"
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

# By the text of a kubeconfig, as the resource that makes a cluster gives it out.
provider "gpufabric" {
  alias          = "by_text"
  kubeconfig_raw = var.kubeconfig
}
