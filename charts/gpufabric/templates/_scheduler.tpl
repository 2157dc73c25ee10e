{{/* What the second scheduler reads: one profile, with our placement of shares added and our preemption in the place of the stock one. */}}
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
          - name: GPUFabricPreemption
        disabled:
          - name: DefaultPreemption
    pluginConfig:
      - name: GPUFabricVGPU
        args:
          nodePolicy: {{ .Values.scheduler.nodePolicy }}
          cardPolicy: {{ .Values.scheduler.cardPolicy }}
{{- end }}
