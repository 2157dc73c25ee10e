data "gpufabric_nodes" "gpu" {
  node_selector = {
    match_labels = { "node.kubernetes.io/instance-type" = "gb200" }
  }
}

output "unhealthy" {
  value = [for n in data.gpufabric_nodes.gpu.nodes : n.name if !n.healthy]
}
