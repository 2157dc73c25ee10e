list "gpufabric_vgpu_profile" "all" {
  provider = gpufabric
}
