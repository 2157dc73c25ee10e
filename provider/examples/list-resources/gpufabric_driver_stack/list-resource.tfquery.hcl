# In a file NAME.tfquery.hcl beside the provider block: `terraform query -generate-config-out=generated.tf` writes a resource and an
# import block for each.
list "gpufabric_driver_stack" "all" {
  provider = gpufabric
}

# One namespace, for a chart of another name, with all attributes in the output.
list "gpufabric_driver_stack" "own_chart" {
  provider         = gpufabric
  limit            = 10
  include_resource = true

  config {
    namespace = "gpu-platform"
    chart     = "our-gpufabric"
  }
}
