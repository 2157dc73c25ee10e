list "gpufabric_secondary_network" "all" {
  provider = gpufabric
}
