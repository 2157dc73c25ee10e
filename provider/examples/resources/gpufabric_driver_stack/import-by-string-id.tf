import {
  to = gpufabric_driver_stack.this
  id = "gpufabric-system/gpufabric"
}
