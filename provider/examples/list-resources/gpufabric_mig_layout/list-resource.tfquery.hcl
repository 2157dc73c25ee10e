list "gpufabric_mig_layout" "all" {
  provider = gpufabric
}
