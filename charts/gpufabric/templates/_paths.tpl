{{/*
A directory of the node appears at the same path inside a pod, so that one flag names it on both sides and what is written into a CDI spec needs no
translation. The node's root and its /dev cannot: those of the container lie there. Of the root only the directories that a driver is made of are mounted,
below /host, where the image has links for lib, lib64 and bin; /dev is mounted on /host/dev, since a container's own /dev is where the runtime makes
termination logs.
*/}}
{{- define "gpufabric.driverPlaces" -}}
{{- with include "gpufabric.places" . | fromJson }}
{{- if eq .driverRoot "/" }}/host=/{{ with $.Values.hardware.driverContainerRoot }},{{ . }}{{ end }}{{ else }}{{ .driverRoot }}{{ end }}
{{- end }}
{{- end }}

{{- define "gpufabric.devPlace" -}}
{{ eq .Values.hardware.devRoot "/dev" | ternary "/host/dev=/dev" .Values.hardware.devRoot }}
{{- end }}

{{/*
Places that depend on the platform, as JSON: driverRoot, driverDirectories, stateDir, kubeletRoot, cdiRoot, and the platform's tolerations, scc and
criticalQuota. A value that is set takes precedence over the platform's (files/platforms.yaml), which takes precedence over generic's.
*/}}
{{- define "gpufabric.places" -}}
{{- $table := .Files.Get "files/platforms.yaml" | fromYaml }}
{{- $given := dict }}
{{- range $key, $value := dict "driverRoot" .Values.hardware.driverRoot "driverDirectories" .Values.hardware.driverDirectories
  "stateDir" .Values.stateDir "kubeletRoot" .Values.kubelet.root "cdiRoot" .Values.cdi.root }}
{{- if $value }}{{ $_ := set $given $key $value }}{{ end }}
{{- end }}
{{- merge $given (get $table .Values.platform | default dict) $table.generic | toJson }}
{{- end }}

{{/* true where the cluster has OpenShift's SecurityContextConstraints, else empty. */}}
{{- define "gpufabric.scc" -}}
{{- if or (.Capabilities.APIVersions.Has "security.openshift.io/v1") (include "gpufabric.places" . | fromJson).scc -}}
true
{{- end }}
{{- end }}

{{/* Tolerations of the pods on every node: those of the values, and the platform's. */}}
{{- define "gpufabric.nodeTolerations" -}}
{{- concat (.Values.nodePlugins.tolerations | default list) ((include "gpufabric.places" . | fromJson).tolerations | default list) | toJson }}
{{- end }}

{{/*
What has to be mounted so that a driver's root shows up when it is mounted on the node after the pod was started, and again after it was unmounted: the
directory above it, where that is not one of the node's own first directories.
*/}}
{{- define "gpufabric.aboveDriverRoot" -}}
{{- eq (dir (dir .)) "/" | ternary . (dir .) }}
{{- end }}

{{/*
The hardware directories a node pod needs, as a JSON list of {path, inside, writable, made}. Called with a dict: root is the template's $, driver whether the
role uses NVIDIA's driver. A directory that lies in another one of the list is left out: it is there already. One that is "made" is made where it is missing:
the plugin waits for what will stand in it, the pod need not.
*/}}
{{- define "gpufabric.hardwareMounts" -}}
{{- $wanted := list }}
{{- $hardware := .root.Values.hardware }}
{{- $places := include "gpufabric.places" .root | fromJson }}
{{- range $hardware.hostMounts }}
{{- $wanted = append $wanted (dict "path" (clean .) "inside" (clean .) "writable" true "made" true) }}
{{- end }}
{{- with $hardware }}
{{- if $.driver }}
{{- if eq $places.driverRoot "/" }}
{{- range $places.driverDirectories }}
{{- $wanted = append $wanted (dict "path" (clean .) "inside" (printf "/host%s" (clean .)) "writable" false "made" true) }}
{{- end }}
{{- with .driverContainerRoot }}
{{- $above := include "gpufabric.aboveDriverRoot" (clean .) }}
{{- $wanted = append $wanted (dict "path" $above "inside" $above "writable" false "made" true) }}
{{- end }}
{{- else }}
{{- $above := include "gpufabric.aboveDriverRoot" (clean $places.driverRoot) }}
{{- $wanted = append $wanted (dict "path" $above "inside" $above "writable" false "made" true) }}
{{- end }}
{{- end }}
{{- $wanted = append $wanted (dict "path" (clean .sysfsRoot) "inside" (clean .sysfsRoot) "writable" ($.writesSysfs | default false) "made" false) }}
{{- $wanted = append $wanted (dict "path" (clean .devRoot) "inside" (eq .devRoot "/dev" | ternary "/host/dev" (clean .devRoot)) "writable" false "made" false) }}
{{- /* /proc of the container tells the node's devices: the list is the kernel's, not a namespace's. */}}
{{- if not (hasPrefix "/proc/" .procDevices) }}
{{- $wanted = append $wanted (dict "path" (dir .procDevices) "inside" (dir .procDevices) "writable" false "made" false) }}
{{- end }}
{{- end }}
{{- $mounts := list }}
{{- range $i, $one := $wanted }}
{{- $covered := false }}
{{- range $j, $other := $wanted }}
{{- if and (ne $i $j) (eq $other.path $other.inside) (eq $one.path $one.inside) }}
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

{{/* Flags that tell a role where the node's hardware is. Called as hardwareMounts is, with whether the role is privileged besides. */}}
{{- define "gpufabric.hardwareFlags" -}}
{{- with .root.Values.hardware }}
{{- if $.driver -}}
- --driver-root={{ include "gpufabric.driverPlaces" $.root }}
{{- if and $.privileged .privileged }}
- --own-dev=/dev
{{- end }}
{{ end -}}
- --sysfs-root={{ .sysfsRoot }}
- --dev-root={{ include "gpufabric.devPlace" $.root }}
- --proc-devices={{ .procDevices }}
{{- end }}
{{- end }}

{{/* Directory through which the vGPU plugin asks the GPU plugin for GPUs. */}}
{{- define "gpufabric.handoverDir" -}}
{{ (include "gpufabric.places" . | fromJson).stateDir }}/handover
{{- end }}
