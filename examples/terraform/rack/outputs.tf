output "claim_templates" {
  description = "What pods name to join each domain."
  value       = { for name, d in gpufabric_compute_domain.this : name => d.channel.resource_claim_template }
}

output "cliques" {
  description = "NVLink cliques and their nodes."
  value       = { for c in data.gpufabric_topology.this.cliques : c.id => c.nodes }
}

output "not_ready" {
  description = "Domains that are not Ready, and why."
  value       = { for name, d in gpufabric_compute_domain.this : name => d.message if !d.ready }
}
