import {
  to = gpufabric_compute_domain.this
  id = "training/rack-1"
}
