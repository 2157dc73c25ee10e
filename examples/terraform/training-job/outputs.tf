output "checkpoints" {
  description = "The claim of the volume with the checkpoints."
  value       = "${var.namespace}/${local.volume.metadata.name}"
}

output "job" {
  description = "The job; `kubectl wait --for=condition=Complete` tells when it is done."
  value       = "${var.namespace}/${var.name}"
}
