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
