{{/* Node roles that publish slices: role to its driver and the ending of its pool's name. */}}
{{- define "gpufabric.nodeRoles" -}}
{{- $roles := dict }}
{{- if .Values.computeDomains.enabled }}
{{- $_ := set $roles "compute-domain-plugin" (dict "driver" "compute-domain.nvidia.com" "pool" "-compute-domain") }}
{{- end }}
{{- if .Values.gpus.enabled }}
{{- $_ := set $roles "gpu-plugin" (dict "driver" "gpu.nvidia.com" "pool" "-gpu") }}
{{- end }}
{{- if .Values.rdma.enabled }}
{{- $_ := set $roles "rdma-plugin" (dict "driver" "rdma.gpufabric.io" "pool" "-rdma") }}
{{- end }}
{{- $roles | toJson }}
{{- end }}

{{/* The node that the asking pod runs on, as its token says. */}}
{{- define "gpufabric.policy.node" -}}
- name: node
  expression: >-
    request.userInfo.?extra[?'authentication.kubernetes.io/node-name'][?0].orValue('')
{{- end }}

{{- define "gpufabric.policy.nodeKnown" -}}
- expression: "variables.node != ''"
  message: >-
    the token carries no claim authentication.kubernetes.io/node-name: a node plugin must use the token that the kubelet
    mounts into its pod
  reason: Forbidden
{{- end }}

{{/* Label maps of the Node object before and after. */}}
{{- define "gpufabric.policy.labels" -}}
- name: before
  expression: "oldObject.metadata.?labels.orValue({})"
- name: after
  expression: "object.metadata.?labels.orValue({})"
{{- end }}

{{/* Nothing of a Node but some of its metadata's labels may change. Called with (dict "who" WORDS "keys" LIST). */}}
{{- define "gpufabric.policy.onlyLabels" -}}
- expression: >-
    variables.after.all(key, key in {{ .keys | toJson }} || (key in variables.before && variables.before[key] == variables.after[key])) &&
    variables.before.all(key, key in {{ .keys | toJson }} || key in variables.after)
  message: {{ .who }} may change no label of a node but {{ join " and " .keys }}
  reason: Forbidden
- expression: "object.metadata.?annotations.orValue({}) == oldObject.metadata.?annotations.orValue({}) && object.metadata.?finalizers == oldObject.metadata.?finalizers"
  message: {{ .who }} may change neither annotations nor finalizers of a node
  reason: Forbidden
- expression: "object.spec == oldObject.spec && object.?status == oldObject.?status"
  message: {{ .who }} may change neither the spec nor the status of a node
  reason: Forbidden
{{- end }}
