# Pods ask for a slice with `gpufabric.io/l40s-10g: 1` in their limits.
resource "gpufabric_vgpu_profile" "this" {
  name          = "l40s-10g"
  mode          = "Software"
  memory        = "10Gi"
  cores         = 20
  product_names = ["NVIDIA L40S"]
}
