list "gpufabric_driver_stack" "all" {
  provider = gpufabric
}
