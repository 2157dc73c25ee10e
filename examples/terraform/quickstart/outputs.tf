output "claim_template" {
  description = "What pods name in resourceClaims[].resourceClaimTemplateName to join the domain."
  value       = gpufabric_compute_domain.this.channel.resource_claim_template
}

output "drivers" {
  description = "What is installed."
  value = {
    namespace = gpufabric_driver_stack.this.namespace
    version   = gpufabric_driver_stack.this.app_version
    revision  = gpufabric_driver_stack.this.revision
  }
}

output "domain" {
  description = "How far the domain is, as of the last apply or refresh."
  value = {
    ready   = gpufabric_compute_domain.this.ready
    message = gpufabric_compute_domain.this.message
    nodes   = gpufabric_compute_domain.this.nodes
  }
}
