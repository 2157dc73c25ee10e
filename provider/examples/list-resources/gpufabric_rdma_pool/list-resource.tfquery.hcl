list "gpufabric_rdma_pool" "all" {
  provider = gpufabric
}
