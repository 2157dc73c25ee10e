# In a second configuration: go on only where the drivers run that the first one installed.
data "gpufabric_driver_stack" "this" {
  lifecycle {
    postcondition {
      condition     = self.ready
      error_message = "The drivers do not run: ${join("; ", self.waiting_for)}"
    }
  }
}
