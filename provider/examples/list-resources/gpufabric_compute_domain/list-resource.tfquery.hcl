list "gpufabric_compute_domain" "all" {
  provider = gpufabric
}
