import {
  to = gpufabric_secondary_network.this
  identity = {
    namespace = "training"
    name      = "rail-0"
  }
}
