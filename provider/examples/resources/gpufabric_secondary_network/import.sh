# namespace/name
terraform import gpufabric_secondary_network.this training/rail-0
