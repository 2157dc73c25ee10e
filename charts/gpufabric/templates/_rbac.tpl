{{/* Binds role gpufabric-ROLE to its service account, over the cluster. Called with (dict "root" $ "role" "controller"). */}}
{{- define "gpufabric.bindCluster" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata:
  name: gpufabric-{{ .role }}
  labels:
    {{- include "gpufabric.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: ClusterRole
  name: gpufabric-{{ .role }}
subjects:
  - kind: ServiceAccount
    name: gpufabric-{{ .role }}
    namespace: {{ include "gpufabric.namespaceOf" . }}
{{- end }}

{{/* The same in the release's namespace. */}}
{{- define "gpufabric.bindNamespace" }}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata:
  name: gpufabric-{{ .role }}
  namespace: {{ .root.Release.Namespace }}
  labels:
    {{- include "gpufabric.labels" .root | nindent 4 }}
roleRef:
  apiGroup: rbac.authorization.k8s.io
  kind: Role
  name: gpufabric-{{ .role }}
subjects:
  - kind: ServiceAccount
    name: gpufabric-{{ .role }}
    namespace: {{ .root.Release.Namespace }}
{{- end }}

{{/* Rules of every node plugin that publishes devices. Called with the driver's name. The admission policies hold it to its own node. */}}
{{- define "gpufabric.draRules" -}}
- apiGroups: [resource.k8s.io]
  resources: [resourceslices]
  verbs: [list, watch, create, update, delete]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims]
  verbs: [get]
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims/status]
  verbs: [patch]
# Only this driver's entries of status.devices, and only on claims allocated to its own node.
- apiGroups: [resource.k8s.io]
  resources: [resourceclaims/driver]
  resourceNames: [{{ . }}]
  verbs: ["associated-node:patch"]
- apiGroups: [""]
  resources: [events]
  verbs: [create, patch]
{{- end }}

{{/* Whether the webhook warns of compute domains that fit no clique: "true", or empty. */}}
{{- define "gpufabric.domainWarnings" -}}
{{- if and .Values.webhook.enabled .Values.webhook.domainWarnings .Values.computeDomains.enabled }}true{{ end }}
{{- end }}
