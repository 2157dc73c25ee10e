import {
  to = gpufabric_rdma_pool.this
  id = "hca-a"
}
