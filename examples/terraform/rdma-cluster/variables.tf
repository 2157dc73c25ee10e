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

variable "config_json" {
  description = "Configuration file of the RDMA device plugin whose entries become pools."
  type        = string
  default     = null
}

variable "rails" {
  description = "Secondary networks by name: the interface each hangs on, and its addresses."
  type = map(object({
    master = string
    range  = string
  }))
  default = {
    rail-0 = { master = "ens2f0np0", range = "10.56.0.0/16" }
    rail-1 = { master = "ens2f1np1", range = "10.57.0.0/16" }
  }
}

variable "namespace" {
  description = "Namespace of the secondary networks. It must exist."
  type        = string
  default     = "default"
}
