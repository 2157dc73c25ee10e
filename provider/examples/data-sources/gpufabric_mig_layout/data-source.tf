# The nodes that have a layout already.
data "gpufabric_mig_layout" "halves" {
  name = "halves"
}

output "applied" {
  value = [for node in data.gpufabric_mig_layout.halves.nodes : node.name if node.state == "Applied"]
}
