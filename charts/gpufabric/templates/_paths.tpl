{{/*
A directory of the node appears at the same path inside a pod, so that one flag names it on both sides and what is
written into a CDI spec needs no translation. Only "/" cannot: it is mounted on /host.
*/}}
{{- define "gpufabric.driverRoot" -}}
{{ eq .Values.hardware.driverRoot "/" | ternary "/host" .Values.hardware.driverRoot }}
{{- end }}

{{/*
The hardware directories a node pod needs, as a JSON list of {path, inside, writable}. A directory that lies in
another one of the list is left out: it is there already.
*/}}
{{- define "gpufabric.hardwareMounts" -}}
{{- $wanted := list }}
{{- range .Values.hardware.hostMounts }}
{{- $wanted = append $wanted (dict "path" (clean .) "inside" (clean .) "writable" true) }}
{{- end }}
{{- with .Values.hardware }}
{{- $wanted = append $wanted (dict "path" (clean .driverRoot) "inside" (include "gpufabric.driverRoot" $ | clean) "writable" false) }}
{{- $wanted = append $wanted (dict "path" (clean .sysfsRoot) "inside" (clean .sysfsRoot) "writable" false) }}
{{- $wanted = append $wanted (dict "path" (clean .devRoot) "inside" (clean .devRoot) "writable" false) }}
{{- /* /proc of the container tells the node's devices: the list is the kernel's, not a namespace's. */}}
{{- if not (hasPrefix "/proc/" .procDevices) }}
{{- $wanted = append $wanted (dict "path" (dir .procDevices) "inside" (dir .procDevices) "writable" false) }}
{{- end }}
{{- end }}
{{- $mounts := list }}
{{- range $i, $one := $wanted }}
{{- $covered := false }}
{{- range $j, $other := $wanted }}
{{- if and (ne $i $j) (eq $other.path $other.inside) }}
{{- if or (hasPrefix (printf "%s/" $other.path) $one.path) (and (eq $other.path $one.path) (lt $j $i)) }}
{{- $covered = true }}
{{- end }}
{{- end }}
{{- end }}
{{- if not $covered }}
{{- $mounts = append $mounts $one }}
{{- end }}
{{- end }}
{{- $mounts | toJson }}
{{- end }}

{{/* Flags that tell a role where the node's hardware is. */}}
{{- define "gpufabric.hardwareFlags" -}}
- --driver-root={{ include "gpufabric.driverRoot" . }}
- --sysfs-root={{ .Values.hardware.sysfsRoot }}
- --dev-root={{ .Values.hardware.devRoot }}
- --proc-devices={{ .Values.hardware.procDevices }}
{{- end }}

{{/* The flag that tells where the container runtime finds the driver, where that is not where the pod finds it; else empty. */}}
{{- define "gpufabric.hostDriverRootFlag" -}}
{{- if ne (include "gpufabric.driverRoot" .) .Values.hardware.driverRoot }}--host-driver-root={{ .Values.hardware.driverRoot }}{{ end }}
{{- end }}

{{/* Directory through which the vGPU plugin asks the GPU plugin for GPUs. */}}
{{- define "gpufabric.handoverDir" -}}
{{ .Values.stateDir }}/handover
{{- end }}
