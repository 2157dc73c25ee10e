import {
  to = gpufabric_secondary_network.this
  id = "training/rail-0"
}
