data "gpufabric_topology" "this" {}

# A domain for each NVLink clique, as large as the clique.
resource "gpufabric_compute_domain" "clique" {
  for_each  = { for c in data.gpufabric_topology.this.cliques : provider::gpufabric::parse_clique_id(c.id).clique_id => c }
  name      = "clique-${each.key}"
  num_nodes = length(each.value.nodes)

  channel = {
    resource_claim_template = "clique-${each.key}-channel"
  }
}
