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
- name: appliedBefore
  expression: "oldObject.metadata.?managedFields.orValue([]).filter(m, m.operation == 'Apply')"
- name: applied
  expression: "object.metadata.?managedFields.orValue([]).filter(m, m.operation == 'Apply')"
{{- end }}

{{/* Whether the record entry of who applied what is about a label or an annotation of the lists. Called with (dict "entry" "m" "labels" LIST "annotations" LIST). */}}
{{- define "gpufabric.policy.touches" -}}
{{- $call := . }}
{{- $any := list }}
{{- range $kind := list "labels" "annotations" }}
{{- $any = append $any (printf "%s.?fieldsV1[?'f:metadata'][?'f:%s'].orValue({}).exists(f, [f.replace('f:', '', 1)].exists(key, %s))" $call.entry $kind (include "gpufabric.policy.keys" (get $call $kind))) }}
{{- end }}
{{- join " || " $any }}
{{- end }}

{{/*
What others have applied (server-side apply) stays recorded as theirs. A role that became a second owner of a field would have the first one's next apply refused
as a conflict, and one that took the record away would have fields stay that nobody applies any more. An entry about a field that the role may change is
excepted: it changes with the field. Called as "only" is.
*/}}
{{- define "gpufabric.policy.applied" -}}
- expression: >-
    variables.appliedBefore.all(b, variables.applied.exists(m, m == b) || {{ include "gpufabric.policy.touches" (merge (dict "entry" "b") .) }}) &&
    variables.applied.all(m, variables.appliedBefore.exists(b, b == m || b.manager == m.manager && ({{ include "gpufabric.policy.touches" (merge (dict "entry" "b") .) }})))
  message: {{ .who }} may not change who has applied which fields of {{ .what }} (metadata.managedFields)
  reason: Forbidden
{{- end }}

{{/* Whether key is one of a list, of which those that end in a slash stand for all that begin with them. */}}
{{- define "gpufabric.policy.keys" -}}
{{- $whole := list }}
{{- $prefixes := list }}
{{- range . }}{{ if hasSuffix "/" . }}{{ $prefixes = append $prefixes . }}{{ else }}{{ $whole = append $whole . }}{{ end }}{{ end -}}
key in {{ $whole | toJson }}{{ range $prefixes }} || key.startsWith({{ . | squote }}){{ end }}
{{- end }}

{{/*
Nothing of an object but some labels and annotations may change. (Its status cannot: that is a subresource, to which RBAC gives no right.)
Called with (dict "who" WORDS "what" WORDS "labels" LIST "annotations" LIST). A key that ends in a slash stands for all that begin with it.
*/}}
{{- define "gpufabric.policy.only" -}}
{{- $rule := . }}
{{- range $kind := list "labels" "annotations" }}
{{- $keys := get $rule $kind }}
{{- $may := include "gpufabric.policy.keys" $keys }}
- expression: >-
    variables.{{ $kind }}.all(key, {{ $may }} || (key in variables.{{ $kind }}Before && variables.{{ $kind }}Before[key] == variables.{{ $kind }}[key])) &&
    variables.{{ $kind }}Before.all(key, {{ $may }} || key in variables.{{ $kind }})
  message: {{ $rule.who }} may change {{ if $keys }}no {{ $kind }} of {{ $rule.what }} but {{ join ", " $keys }}{{ else }}no {{ $kind }} of {{ $rule.what }}{{ end }}
  reason: Forbidden
{{- end }}
- expression: "object.spec == oldObject.spec && object.metadata.?finalizers == oldObject.metadata.?finalizers && object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences"
  message: {{ .who }} may change neither the spec nor the finalizers nor the owners of {{ .what }}
  reason: Forbidden
{{ include "gpufabric.policy.applied" . }}
{{- end }}

{{/*
A policy's head and its binding. Called with (dict "root" $ "name" NAME), and "namespace" NAMESPACE where the policy looks at that Namespace as its params, or
"every" true where it looks at every object of its paramKind.
*/}}
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
  {{- if or .namespace .every }}
  paramRef:
    {{- if .namespace }}
    name: {{ .namespace }}
    {{- else }}
    selector: {}
    {{- end }}
    parameterNotFoundAction: Deny
  {{- end }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: gpufabric-{{ .name }}
  labels:
    {{- include "gpufabric.labels" .root | nindent 4 }}
{{- end }}

{{/* Whether nothing but the controller's finalizer goes from a ComputeDomain. */}}
{{- define "gpufabric.policy.freed" -}}
object.spec == oldObject.spec && object.metadata.?labels == oldObject.metadata.?labels && object.metadata.?annotations == oldObject.metadata.?annotations &&
object.metadata.?ownerReferences == oldObject.metadata.?ownerReferences &&
object.metadata.?finalizers.orValue([]) == oldObject.metadata.?finalizers.orValue([]).filter(f, f != 'resource.nvidia.com/computeDomain')
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

{{/*
In a status whose list nodes has an entry for each node, a plugin writes its own. Called with (dict "root" $ "role" ROLE "name" NAME
"resource" RESOURCE "sums" LIST), sums being the status's other fields.
*/}}
{{- define "gpufabric.policy.ownEntries" }}
{{- include "gpufabric.policy.head" . }}
spec:
  {{- include "gpufabric.policy.match" (dict "users" (list (include "gpufabric.username" .)) "group" "gpufabric.io"
    "resource" (printf "%s/status" .resource) "operations" (list "UPDATE")) | nindent 2 }}
  variables:
    {{- include "gpufabric.policy.node" . | nindent 4 }}
    - name: others
      expression: "object.?status.?nodes.orValue([]).filter(entry, entry.name != variables.node)"
    - name: othersBefore
      expression: "oldObject.?status.?nodes.orValue([]).filter(entry, entry.name != variables.node)"
  validations:
    {{- include "gpufabric.policy.nodeKnown" . | nindent 4 }}
    - expression: "variables.others == variables.othersBefore"
      messageExpression: "'a plugin on node ' + variables.node + ' may write the entry of that node only'"
      reason: Forbidden
    - expression: >-
        {{- $same := list }}
        {{- range .sums }}
        {{- $same = append $same (printf "object.?status.?%s == oldObject.?status.?%s" . .) }}
        {{- end }}
        {{ join " && " $same }}
      message: a plugin may write its node's entry in the status, and not what sums the nodes up
      reason: Forbidden
{{- end }}

{{/*
Whether the image of container c is one of a list: an image by its whole name, a repository's images by its name without tag or digest, and all
below a path by one that ends in a slash. Called with the list.
*/}}
{{- define "gpufabric.policy.images" -}}
{{- $images := . | toJson | replace "\"" "'" -}}
{{ $images }}.exists(i, c.image == i || c.image.startsWith(i.endsWith('/') ? i : i + ':') || !i.endsWith('/') && c.image.startsWith(i + '@'))
{{- end }}
