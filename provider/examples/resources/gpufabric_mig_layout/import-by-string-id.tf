import {
  to = gpufabric_mig_layout.this
  id = "inference"
}
