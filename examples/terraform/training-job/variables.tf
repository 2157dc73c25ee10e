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

variable "name" {
  description = "Name of the job; its domain and its volume are called after it."
  type        = string
  default     = "training"
}

variable "namespace" {
  description = "Namespace of the job. It must exist."
  type        = string
  default     = "default"
}

variable "nodes" {
  description = "How many nodes train together; one pod runs on each."
  type        = number
  default     = 2
}

variable "gpus_per_node" {
  description = "GPUs of each pod."
  type        = number
  default     = 4
}

variable "image" {
  description = "Image of the pods; it needs bash."
  type        = string
  default     = "ubuntu:22.04"
}

variable "steps" {
  description = "Steps of training until the job is done."
  type        = number
  default     = 100
}

variable "storage_class" {
  description = "StorageClass of the volume for checkpoints, for example longhorn."
  type        = string
}

variable "access_mode" {
  description = "How pods of several nodes share the volume. Longhorn and other file systems over the network have ReadWriteMany."
  type        = string
  default     = "ReadWriteMany"
}

variable "checkpoint_size" {
  description = "Size of the volume."
  type        = string
  default     = "100Gi"
}
