import {
  to = gpufabric_compute_domain.this
  identity = {
    namespace = "training"
    name      = "rack-1"
  }
}
