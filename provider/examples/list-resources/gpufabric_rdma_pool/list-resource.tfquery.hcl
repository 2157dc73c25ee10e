# In a file NAME.tfquery.hcl beside the provider block: `terraform query -generate-config-out=generated.tf` writes a resource and an
# import block for each.
list "gpufabric_rdma_pool" "all" {
  provider = gpufabric
}

# At most 100 of those with a label, with all their attributes in the output.
list "gpufabric_rdma_pool" "of_a_team" {
  provider         = gpufabric
  limit            = 100
  include_resource = true

  config {
    label_selector = "team=a"
  }
}
