# A domain that another configuration declares; its template is what pods name.
data "gpufabric_compute_domain" "training" {
  name      = "training"
  namespace = "team-a"
}

output "claim_template" {
  value = data.gpufabric_compute_domain.training.channel.resource_claim_template
}
