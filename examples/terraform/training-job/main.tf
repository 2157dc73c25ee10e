# A training job on one compute domain, whose checkpoints go to a volume of a StorageClass: a pod that is started again goes on where its last checkpoint is.

provider "gpufabric" {
  config_path    = var.kubeconfig
  config_context = var.context
}

resource "gpufabric_driver_stack" "this" {
  chart    = coalesce(var.chart, "${path.module}/../../../charts/gpufabric")
  values   = [for f in var.values_files : file(f)]
  hardware = var.hardware

  components = {
    compute_domains = true
    gpus            = true
  }

  lifecycle {
    postcondition {
      condition     = self.ready
      error_message = "The drivers do not run yet:\n${join("\n", self.waiting_for)}"
    }
  }
}

resource "gpufabric_compute_domain" "this" {
  name      = var.name
  namespace = var.namespace
  num_nodes = var.nodes

  channel = {
    resource_claim_template = "${var.name}-channel"
  }

  depends_on = [gpufabric_driver_stack.this]
}

locals {
  volume = {
    apiVersion = "v1"
    kind       = "PersistentVolumeClaim"
    metadata   = { name = "${var.name}-checkpoints", namespace = var.namespace }
    spec = {
      storageClassName = var.storage_class
      accessModes      = [var.access_mode]
      resources        = { requests = { storage = var.checkpoint_size } }
    }
  }

  labels = { "training-job" = var.name }

  job = {
    apiVersion = "batch/v1"
    kind       = "Job"
    metadata   = { name = var.name, namespace = var.namespace }
    spec = {
      completionMode = "Indexed"
      completions    = var.nodes
      parallelism    = var.nodes
      template = {
        metadata = { labels = local.labels }
        spec = {
          restartPolicy = "OnFailure"
          # One pod a node, all in one NVLink clique.
          affinity = {
            podAffinity     = { requiredDuringSchedulingIgnoredDuringExecution = [{ labelSelector = { matchLabels = local.labels }, topologyKey = "nvidia.com/gpu.clique" }] }
            podAntiAffinity = { requiredDuringSchedulingIgnoredDuringExecution = [{ labelSelector = { matchLabels = local.labels }, topologyKey = "kubernetes.io/hostname" }] }
          }
          containers = [{
            name         = "train"
            image        = var.image
            command      = ["bash", "-c", file("${path.module}/train.sh")]
            env          = [{ name = "STEPS", value = tostring(var.steps) }]
            resources    = { limits = { "nvidia.com/gpu" = var.gpus_per_node }, claims = [{ name = "channel" }] }
            volumeMounts = [{ name = "checkpoints", mountPath = "/checkpoints" }]
          }]
          resourceClaims = [{ name = "channel", resourceClaimTemplateName = gpufabric_compute_domain.this.channel.resource_claim_template }]
          volumes        = [{ name = "checkpoints", persistentVolumeClaim = { claimName = local.volume.metadata.name } }]
        }
      }
    }
  }
}

# kubectl brings volume and job, so that this example needs no other provider; with hashicorp/kubernetes they would be two kubernetes_manifest.
resource "terraform_data" "job" {
  input = {
    manifest = "${yamlencode(local.volume)}---\n${yamlencode(local.job)}"
    kubectl  = join(" ", concat(["kubectl", "--kubeconfig=${var.kubeconfig}"], var.context == null ? [] : ["--context=${var.context}"]))
  }
  triggers_replace = [local.volume, local.job]

  provisioner "local-exec" {
    command     = "${self.input.kubectl} apply --filename - <<<\"$MANIFEST\""
    interpreter = ["bash", "-c"]
    environment = { MANIFEST = self.input.manifest }
  }

  provisioner "local-exec" {
    when        = destroy
    command     = "${self.output.kubectl} delete --ignore-not-found --timeout=5m --filename - <<<\"$MANIFEST\""
    interpreter = ["bash", "-c"]
    environment = { MANIFEST = self.output.manifest }
  }
}
