terraform {
  required_version = ">= 1.8"

  required_providers {
    gpufabric = {
      source = "gpufabric/gpufabric"
    }
  }
}
