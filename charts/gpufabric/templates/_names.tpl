{{/* Labels of every object. part-of is how the chart knows its own objects again, whatever the release was called. */}}
{{- define "gpufabric.labels" -}}
app.kubernetes.io/name: gpufabric
app.kubernetes.io/part-of: gpufabric
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Labels that select one role's pods. Called with (dict "root" $ "role" "controller"). */}}
{{- define "gpufabric.selector" -}}
app.kubernetes.io/name: gpufabric
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .role }}
{{- end }}

{{/* The port of /metrics. Where they are for those alone who may read them, it has a name of its own, by which a PodMonitor knows to come with a token. */}}
{{- define "gpufabric.metricsPort" -}}
{{ ternary "metrics-tls" "metrics" .Values.metrics.authentication }}
{{- end }}

{{/* How the kubelet asks for health on that port. */}}
{{- define "gpufabric.probePort" -}}
port: {{ include "gpufabric.metricsPort" . }}
{{- if .Values.metrics.authentication }}
scheme: HTTPS
{{- end }}
{{- end }}

{{- define "gpufabric.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/*
Namespace of a role. The RDMA and vGPU plugins can stand where existing ConfigMaps of theirs do, since a pod reads ConfigMaps of
its own namespace only. Called with (dict "root" $ "role" "controller").
*/}}
{{- define "gpufabric.namespaceOf" -}}
{{- $own := dict "rdma-plugin" .root.Values.rdma.namespace "vgpu-plugin" .root.Values.vgpu.namespace "vgpu-monitor" .root.Values.vgpu.namespace }}
{{- get $own .role | default .root.Release.Namespace }}
{{- end }}

{{/* Username of a role's service account, as the API server sees it. */}}
{{- define "gpufabric.username" -}}
system:serviceaccount:{{ include "gpufabric.namespaceOf" . }}:gpufabric-{{ .role }}
{{- end }}
