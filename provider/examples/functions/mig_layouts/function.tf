# Every way to divide an H100 that leaves room for a 4g.40gb.
output "layouts" {
  value = provider::gpufabric::mig_layouts("H100-80GB", "4g.40gb")
}
