{{/* What the pods of Deployments share, which need nothing of their node. Called with (dict "root" $ "values" .Values.controller). */}}
{{- define "gpufabric.deploymentPod" -}}
{{- with .root.Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
priorityClassName: {{ .values.priorityClassName }}
{{- with .values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65532
  runAsGroup: 65532
  # A mounted Secret's files are root's; this group reads them.
  fsGroup: 65532
  seccompProfile:
    type: RuntimeDefault
{{- end }}
