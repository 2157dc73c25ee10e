output "layouts" {
  value = keys(provider::gpufabric::mig_parted(file("${path.module}/mig.yaml")))
}
