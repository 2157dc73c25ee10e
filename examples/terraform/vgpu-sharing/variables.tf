variable "kubeconfig" {
  description = "Path of the cluster's kubeconfig file."
  type        = string
}

variable "context" {
  description = "Context of the kubeconfig; null takes its current-context."
  type        = string
  default     = null
}

variable "chart" {
  description = "The chart gpufabric: a directory or an archive. null takes the one of this repository."
  type        = string
  default     = null
}

variable "values_files" {
  description = "Files with chart values, later ones over earlier ones."
  type        = list(string)
  default     = []
}

variable "hardware" {
  description = "Where nodes keep their hardware. null fits real nodes with NVIDIA's driver installed on the host; ../quickstart/fake-hardware.tfvars is for nodes with the chart fake-hardware."
  type = object({
    driver_root  = optional(string)
    sysfs_root   = optional(string)
    dev_root     = optional(string)
    proc_devices = optional(string)
    host_mounts  = optional(list(string))
    privileged   = optional(bool)
  })
  default = null
}

variable "slices" {
  description = "Kinds of slices by name."
  type = map(object({
    memory_gib = number
    cores      = number
  }))
  default = {
    small = { memory_gib = 8, cores = 10 }
    large = { memory_gib = 20, cores = 40 }
  }
}

variable "gpu_memory_mib" {
  description = "Memory of the GPUs that are shared, in MiB; an L40S has 49140."
  type        = number
  default     = 49140
}
