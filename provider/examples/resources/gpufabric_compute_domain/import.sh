# namespace/name
terraform import gpufabric_compute_domain.this training/rack-1
