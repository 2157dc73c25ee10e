import {
  to = gpufabric_driver_stack.this
  identity = {
    namespace = "gpufabric-system"
    name      = "gpufabric"
  }
}
