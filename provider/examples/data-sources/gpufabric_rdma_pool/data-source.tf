# Pods ask for the resource of a pool that the platform's configuration declares.
data "gpufabric_rdma_pool" "fabric" {
  name = "fabric"

  lifecycle {
    postcondition {
      condition     = self.ready
      error_message = "The pool is not ready: ${self.message}"
    }
  }
}

output "resource" {
  value = data.gpufabric_rdma_pool.fabric.resource
}
