{{/*
A node plugin's DaemonSet. Called with a dict:
  root         the template's $
  role         the subcommand, such as compute-domain-plugin
  values       the values of this plugin
  privileged   whether it needs what only a privileged container has
  hostNetwork  whether it runs in the node's network namespace
  port         of /metrics and /healthz
  kubelet      directories under the kubelet's root through which the two speak; a plugin sees no other plugin's sockets
  shared       further directories of the node that are made where they are missing, at the same path in the pod
  seen         further directories of the node that it reads and does not write, at the same path in the pod; may be missing
  configMaps   ConfigMaps of its namespace as a list of {name, path}; one that is missing is waited for by none
  args         further flags
  stateOf      a role whose state it reads and does not write, instead of having one; "" for none
  capabilities what a container that is not privileged keeps; may be missing
  namespaces   true: it sees the network namespaces of the node's pods; may be missing
  writesSysfs  true: it changes the drivers of PCI functions; may be missing
  processes    true: it sees the node's /proc, to find the container of a process that NVML lists; may be missing
  driver       whether it uses NVIDIA's driver, and so sees the driver's files
  bounded      directories of state and shared in which it mounts file systems of bounded size for tenants; may be missing
  noHardware   true: it sees neither the driver's files nor /sys nor /dev; may be missing
*/}}
{{- define "gpufabric.nodePlugin" }}
{{- $values := .root.Values }}
{{- $places := include "gpufabric.places" .root | fromJson }}
{{- $hardware := list }}
{{- if not .noHardware }}
{{- $hardware = include "gpufabric.hardwareMounts" . | fromJsonArray }}
{{- end }}
{{- range $path := .seen }}
{{- $covered := false }}
{{- range $hardware }}
{{- if hasPrefix (printf "%s/" .inside) (printf "%s/" $path) }}
{{- $covered = true }}
{{- end }}
{{- end }}
{{- if not $covered }}
{{- $hardware = append $hardware (dict "path" $path "inside" $path "writable" false "made" true) }}
{{- end }}
{{- end }}
{{- $state := printf "%s/%s" $places.stateDir (.stateOf | default .role) }}
{{- $own := ternary list (list $places.cdiRoot $state) (ne .stateOf "") }}
{{- range .kubelet }}
{{- $own = append $own (printf "%s/%s" $places.kubeletRoot .) }}
{{- end }}
{{- $own = concat $own .shared }}
{{- if .driver }}
{{- /* By which the roles that open NVML agree to close it: gpufabric drain. */}}
{{- $own = append $own (printf "%s/drain" $places.stateDir) }}
{{- end }}
---
apiVersion: apps/v1
kind: DaemonSet
metadata:
  name: gpufabric-{{ .role }}
  namespace: {{ include "gpufabric.namespaceOf" . }}
  labels:
    {{- include "gpufabric.labels" .root | nindent 4 }}
    app.kubernetes.io/component: {{ .role }}
spec:
  selector:
    matchLabels:
      {{- include "gpufabric.selector" . | nindent 6 }}
  # A rollout goes on when the new pods have been ready for a while: one that crashes, or does not answer the kubelet, stops it after the first batch.
  minReadySeconds: 10
  updateStrategy:
    rollingUpdate:
      maxUnavailable: {{ $values.nodePlugins.maxUnavailable }}
  template:
    metadata:
      labels:
        {{- include "gpufabric.selector" . | nindent 8 }}
        app.kubernetes.io/part-of: gpufabric
      annotations:
        kubectl.kubernetes.io/default-container: {{ .role }}
    spec:
      serviceAccountName: gpufabric-{{ .role }}
      {{- with $values.imagePullSecrets }}
      imagePullSecrets:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      priorityClassName: {{ $values.nodePlugins.priorityClassName }}
      {{- if .hostNetwork }}
      # The kernel reports the links of the namespace that asks.
      hostNetwork: true
      dnsPolicy: ClusterFirstWithHostNet
      {{- end }}
      {{- with $values.nodePlugins.nodeSelector }}
      nodeSelector:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $values.nodePlugins.affinity }}
      affinity:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with include "gpufabric.nodeTolerations" .root | fromJsonArray }}
      tolerations:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      containers:
        - name: {{ .role }}
          image: {{ include "gpufabric.image" .root }}
          imagePullPolicy: {{ $values.image.pullPolicy }}
          command: [gpufabric-node]
          args:
            - {{ .role }}
            - --node-name=$(NODE_NAME)
            {{- if not .noHardware }}
            {{- include "gpufabric.hardwareFlags" . | nindent 12 }}
            {{- end }}
            - --kubelet-root={{ $places.kubeletRoot }}
            - --cdi-root={{ $places.cdiRoot }}
            - --state-dir={{ $state }}
            {{- if not .noHardware }}
            - --cgroup-root=/host/sys/fs/cgroup={{ clean $values.hardware.cgroupRoot }}
            {{- end }}
            - --metrics-address=:{{ .port }}
            {{- if $values.metrics.authentication }}
            - --metrics-authentication
            {{- end }}
            - --v={{ $values.log.verbosity }}
            {{- range .args }}
            - {{ . | quote }}
            {{- end }}
          env:
            - name: NODE_NAME
              valueFrom:
                fieldRef:
                  fieldPath: spec.nodeName
            - name: POD_NAMESPACE
              valueFrom:
                fieldRef:
                  fieldPath: metadata.namespace
            {{- with include "gpufabric.goMemoryLimit" .values.resources }}
            {{- . | nindent 12 }}
            {{- end }}
          ports:
            - name: {{ include "gpufabric.metricsPort" .root }}
              containerPort: {{ .port }}
          # Both ask the role's own sockets what the kubelet would ask.
          livenessProbe:
            httpGet:
              path: /healthz
              {{- include "gpufabric.probePort" .root | nindent 14 }}
            periodSeconds: 20
            timeoutSeconds: 10
            failureThreshold: 6
          readinessProbe:
            httpGet:
              path: /readyz
              {{- include "gpufabric.probePort" .root | nindent 14 }}
            periodSeconds: 5
            timeoutSeconds: 5
          resources:
            {{- toYaml .values.resources | nindent 12 }}
          securityContext:
            # Root, because the sockets in the kubelet's directory, the CDI specs and the state are root's.
            runAsUser: 0
            runAsGroup: 0
            readOnlyRootFilesystem: true
            {{- if and .privileged $values.hardware.privileged }}
            # It opens devices (NVML /dev/nvidiactl and /dev/nvidia<n>, the events of HCAs /dev/infiniband/uverbs<n>), which the device cgroup denies to
            # any other container.
            privileged: true
            {{- else }}
            privileged: false
            allowPrivilegeEscalation: false
            capabilities:
              drop: [ALL]
              {{- with .capabilities }}
              add:
                {{- toYaml . | nindent 16 }}
              {{- end }}
            seccompProfile:
              type: RuntimeDefault
            {{- end }}
          volumeMounts:
            {{- range $i, $path := $own }}
            - name: own-{{ $i }}
              mountPath: {{ $path }}
              {{- if and $.privileged $values.hardware.privileged (has $path ($.bounded | default list)) }}
              # The container runtime mounts them in tenants' containers, so they are mounted on the node.
              mountPropagation: Bidirectional
              {{- end }}
            {{- end }}
            {{- if .stateOf }}
            - name: state
              mountPath: {{ $state }}
              readOnly: true
              # What is mounted there for tenants later has to show up here.
              mountPropagation: HostToContainer
            {{- end }}
            {{- range $i, $mount := $hardware }}
            - name: hardware-{{ $i }}
              mountPath: {{ $mount.inside }}
              readOnly: {{ not $mount.writable }}
              # What is mounted on the node later (a driver container's root) has to show up here.
              mountPropagation: HostToContainer
            {{- end }}
            {{- if not .noHardware }}
            # The container's own shows its own cgroup alone. A device is free when the cgroups of its claim's pods have no process.
            - name: cgroups
              mountPath: /host/sys/fs/cgroup
              readOnly: true
            {{- end }}
            {{- if .processes }}
            - name: processes
              mountPath: /host/proc
              readOnly: true
            {{- end }}
            {{- if .namespaces }}
            - name: namespaces
              mountPath: /var/run/netns
              readOnly: true
              # Each pod's namespace is a mount of its own.
              mountPropagation: HostToContainer
            {{- end }}
            {{- range $i, $map := .configMaps }}
            - name: configuration-{{ $i }}
              mountPath: {{ $map.path }}
              readOnly: true
            {{- end }}
      volumes:
        {{- range $i, $path := $own }}
        - name: own-{{ $i }}
          hostPath:
            path: {{ $path }}
            type: DirectoryOrCreate
        {{- end }}
        {{- if .stateOf }}
        - name: state
          hostPath:
            path: {{ $state }}
            type: DirectoryOrCreate
        {{- end }}
        {{- range $i, $mount := $hardware }}
        - name: hardware-{{ $i }}
          hostPath:
            path: {{ $mount.path }}
            {{- if $mount.made }}
            # Made if it is missing: the plugin waits for what will stand in it, the pod need not.
            type: DirectoryOrCreate
            {{- end }}
        {{- end }}
        {{- if not .noHardware }}
        - name: cgroups
          hostPath:
            path: {{ clean $values.hardware.cgroupRoot }}
        {{- end }}
        {{- if .processes }}
        - name: processes
          hostPath:
            path: /proc
        {{- end }}
        {{- if .namespaces }}
        - name: namespaces
          hostPath:
            path: /var/run/netns
            type: DirectoryOrCreate
        {{- end }}
        {{- range $i, $map := .configMaps }}
        - name: configuration-{{ $i }}
          configMap:
            name: {{ $map.name }}
            optional: true
        {{- end }}
{{- end }}
