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
  description = "Where nodes keep their hardware. null fits real nodes with NVIDIA's driver installed on the host; fake-hardware.tfvars is for nodes with the chart fake-hardware."
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

variable "namespace" {
  description = "Namespace of the compute domain. It must exist."
  type        = string
  default     = "default"
}

variable "domain" {
  description = "Name of the compute domain. Pods name its claim template, <domain>-channel."
  type        = string
  default     = "quickstart"
}

variable "nodes" {
  description = "How many nodes the domain has before its pods start."
  type        = number
  default     = 2
}
