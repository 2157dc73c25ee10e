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
    namespace: {{ .root.Release.Namespace }}
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
