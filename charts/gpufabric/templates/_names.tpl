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
{{ .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}

{{- define "gpufabric.schedulerImage" -}}
{{- $image := .Values.scheduler.image -}}
{{ $image.repository }}{{ with $image.digest }}@{{ . }}{{ else }}:{{ $image.tag | default .Values.image.tag | default .Chart.AppVersion }}{{ end }}
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

{{/*
The variable by which Go collects garbage before a container reaches its memory limit: nine tenths of it, since the limit also counts what Go does not
manage (the driver's libraries, files on a tmpfs). Called with a role's resources; without a limit it is empty. A quantity is a number, or a number
with a suffix of the API server's (values.schema.json).
*/}}
{{- define "gpufabric.goMemoryLimit" -}}
{{- with (.limits | default dict).memory }}
{{- $text := ternary (printf "%.0f" .) (toString .) (kindIs "float64" .) }}
{{- $suffix := regexFind "[A-Za-z]*$" $text }}
{{- $unit := get (dict "" 1.0 "k" 1e3 "M" 1e6 "G" 1e9 "T" 1e12 "P" 1e15 "E" 1e18 "Ki" 1024.0 "Mi" 1048576.0 "Gi" 1073741824.0 "Ti" 1099511627776.0
  "Pi" 1125899906842624.0 "Ei" 1152921504606846976.0 "m" 1e-3 "u" 1e-6 "n" 1e-9) $suffix }}
- name: GOMEMLIMIT
  value: {{ mulf (float64 (trimSuffix $suffix $text)) $unit 0.9 | printf "%.0f" | quote }}
{{- end }}
{{- end }}
