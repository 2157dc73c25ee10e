{{/* What the second scheduler reads: one profile, with our placement of shares added, and our plugin for claims and our preemption in the place of the stock ones. */}}
{{- define "gpufabric.schedulerConfiguration" -}}
apiVersion: kubescheduler.config.k8s.io/v1
kind: KubeSchedulerConfiguration
leaderElection:
  leaderElect: true
  resourceName: gpufabric-scheduler
  resourceNamespace: {{ .Release.Namespace }}
profiles:
  - schedulerName: {{ .Values.scheduler.name }}
    plugins:
      multiPoint:
        enabled:
          - name: GPUFabricVGPU
            weight: {{ .Values.scheduler.weight }}
          - name: GPUFabricDynamicResources
            weight: 2  # what kube-scheduler gives the plugin whose place it takes
          - name: GPUFabricPreemption
        disabled:
          - name: DynamicResources
          - name: DefaultPreemption
      # Before DefaultBinder, which binds the pods that it leaves.
      bind:
        enabled:
          - name: GPUFabricVGPU
    pluginConfig:
      {{- range list "GPUFabricVGPU" "GPUFabricDynamicResources" }}
      - name: {{ . }}
        args:
          nodePolicy: {{ $.Values.scheduler.nodePolicy }}
          cardPolicy: {{ $.Values.scheduler.cardPolicy }}
          {{- if and (eq . "GPUFabricVGPU") $.Values.scheduler.nodeLock }}
          nodeLock: true
          {{- end }}
      {{- end }}
{{- end }}

{{/* Who places pods with shares, as vgpu-plugin's flag says it. */}}
{{- define "gpufabric.vgpuScheduler" -}}
{{- .Values.vgpu.scheduler | default (ternary "gpufabric" "volcano" .Values.scheduler.enabled) }}
{{- end }}
