# namespace/name of the Helm release
terraform import gpufabric_driver_stack.this gpufabric-system/gpufabric
