import {
  to = gpufabric_vgpu_profile.this
  id = "l40s-10g"
}
