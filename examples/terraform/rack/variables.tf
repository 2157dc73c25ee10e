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

variable "domains" {
  description = "Compute domains by name: how many nodes each has, and in which namespace its pods run."
  type = map(object({
    nodes     = number
    namespace = optional(string, "default")
  }))
  default = {
    train = { nodes = 16 }
    eval  = { nodes = 2 }
  }
}
