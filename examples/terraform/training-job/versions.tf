terraform {
  required_version = ">= 1.6"

  required_providers {
    gpufabric = {
      source = "gpufabric/gpufabric"
    }
  }
}
