# name
terraform import gpufabric_vgpu_profile.this l40s-10g
