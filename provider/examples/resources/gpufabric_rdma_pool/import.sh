# name
terraform import gpufabric_rdma_pool.this hca-a
