import {
  to = gpufabric_mig_layout.this
  identity = {
    name = "inference"
  }
}
