# name
terraform import gpufabric_mig_layout.this inference
