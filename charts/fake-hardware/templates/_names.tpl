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

{{- define "fake-hardware.image" -}}
{{- if and .Values.image.digest .Values.image.tag }}
{{- fail (printf "image.tag=%s and image.digest=%s both name the image: set one of them to \"\"" .Values.image.tag .Values.image.digest) }}
{{- end }}
{{- .Values.image.repository }}{{ with .Values.image.digest }}@{{ . }}{{ else }}:{{ .Values.image.tag | default .Chart.AppVersion }}{{ end }}
{{- end }}
