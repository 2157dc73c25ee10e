{{/* Node roles that publish slices: role to its driver and the ending of its pool's name. */}}
{{- define "gpufabric.sliceRoles" -}}
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

{{- define "gpufabric.policy.ownNode" -}}
- expression: "object.metadata.name == variables.node"
  messageExpression: "'a plugin on node ' + variables.node + ' may change that node only, not ' + object.metadata.name"
  reason: Forbidden
{{- end }}

{{/* Labels and annotations before and after. */}}
{{- define "gpufabric.policy.metadata" -}}
- name: labelsBefore
  expression: "oldObject.metadata.?labels.orValue({})"
- name: labels
  expression: "object.metadata.?labels.orValue({})"
- name: annotationsBefore
  expression: "oldObject.metadata.?annotations.orValue({})"
- name: annotations
  expression: "object.metadata.?annotations.orValue({})"
{{- end }}

{{/*
Nothing of an object but some labels and annotations may change. (Its status cannot: that is a subresource, to which RBAC gives no right.)
Called with (dict "who" WORDS "what" WORDS "labels" LIST "annotations" LIST).
*/}}
{{- define "gpufabric.policy.only" -}}
{{- $rule := . }}
{{- range $kind := list "labels" "annotations" }}
{{- $keys := get $rule $kind }}
- expression: >-
    variables.{{ $kind }}.all(key, key in {{ $keys | toJson }} || (key in variables.{{ $kind }}Before && variables.{{ $kind }}Before[key] == variables.{{ $kind }}[key])) &&
    variables.{{ $kind }}Before.all(key, key in {{ $keys | toJson }} || key in variables.{{ $kind }})
  message: {{ $rule.who }} may change {{ if $keys }}no {{ $kind }} of {{ $rule.what }} but {{ join ", " $keys }}{{ else }}no {{ $kind }} of {{ $rule.what }}{{ end }}
  reason: Forbidden
{{- end }}
- expression: "object.spec == oldObject.spec && object.metadata.?finalizers == oldObject.metadata.?finalizers && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences"
  message: {{ .who }} may change neither the spec nor the finalizers nor the owners of {{ .what }}
  reason: Forbidden
{{- end }}

{{/* A policy's head and its binding. Called with (dict "root" $ "name" NAME). */}}
{{- define "gpufabric.policy.head" }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: gpufabric-{{ .name }}
  labels:
    {{- include "gpufabric.labels" .root | nindent 4 }}
spec:
  policyName: gpufabric-{{ .name }}
  validationActions: [Deny]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: gpufabric-{{ .name }}
  labels:
    {{- include "gpufabric.labels" .root | nindent 4 }}
{{- end }}

{{/* Whom a policy speaks of, and where. Called with (dict "root" $ "users" LIST "group" "" "resource" "nodes" "operations" LIST). */}}
{{- define "gpufabric.policy.match" -}}
failurePolicy: Fail
matchConstraints:
  resourceRules:
    - apiGroups: [{{ .group | quote }}]
      apiVersions: ["*"]
      operations: {{ .operations | toJson }}
      resources: [{{ .resource }}]
matchConditions:
  - name: this-role-asks
    expression: request.userInfo.username in {{ .users | toJson }}
{{- end }}
