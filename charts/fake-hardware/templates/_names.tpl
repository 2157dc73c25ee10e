{{- define "fake-hardware.labels" -}}
app.kubernetes.io/name: fake-hardware
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end }}

{{- define "fake-hardware.selector" -}}
app.kubernetes.io/name: fake-hardware
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}
