import {
  to = gpufabric_rdma_pool.this
  identity = {
    name = "hca-a"
  }
}
