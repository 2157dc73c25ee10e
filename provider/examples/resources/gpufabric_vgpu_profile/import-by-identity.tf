import {
  to = gpufabric_vgpu_profile.this
  identity = {
    name = "l40s-10g"
  }
}
