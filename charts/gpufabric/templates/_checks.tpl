{{- define "gpufabric.check.server" -}}
{{- if semverCompare "<1.34.0-0" .Capabilities.KubeVersion.Version }}
{{- fail (printf "gpufabric needs Kubernetes 1.34 or later, which serves resource.k8s.io/v1 by default; this server is %s: upgrade the cluster first" .Capabilities.KubeVersion.Version) }}
{{- end }}
{{- if not (.Capabilities.APIVersions.Has "resource.k8s.io/v1") }}
{{- fail "gpufabric needs the API resource.k8s.io/v1, which this server does not serve: remove it from the API server's --runtime-config, or the gate DynamicResourceAllocation=false" }}
{{- end }}
{{- end }}

{{/* Looks at nothing but .Values: the Terraform provider runs it by itself when it plans, with no cluster. */}}
{{- define "gpufabric.check.values" -}}
{{- if not (or .Values.computeDomains.enabled .Values.gpus.enabled .Values.rdma.enabled .Values.vgpu.enabled) }}
{{- fail "nothing is enabled: set at least one of computeDomains.enabled, gpus.enabled, rdma.enabled, vgpu.enabled to true" }}
{{- end }}
{{- if and .Values.image.digest .Values.image.tag }}
{{- fail (printf "image.tag=%s and image.digest=%s both name the image: set one of them to \"\"" .Values.image.tag .Values.image.digest) }}
{{- end }}
{{- if and .Values.scheduler.enabled .Values.scheduler.image.digest (or .Values.scheduler.image.tag .Values.image.tag) }}
{{- fail (printf "scheduler.image.digest=%s names the image, and so does the tag %s (scheduler.image.tag, or image.tag): set one of them to \"\"" .Values.scheduler.image.digest (.Values.scheduler.image.tag | default .Values.image.tag)) }}
{{- end }}
{{- if and (eq .Values.computeDomains.imex "host") (has (dir .Values.computeDomains.hostSocket) (list "/var/run" "/var/lib" "/var/tmp" "/usr/lib" "/etc/systemd")) }}
{{- fail (printf "computeDomains.hostSocket=%s: the node plugin sees the whole directory of the socket, so give it one of its own, such as /etc/nvidia-imex/imex_ctrl.sock" .Values.computeDomains.hostSocket) }}
{{- end }}
{{- if and .Values.vgpu.enabled (not .Values.gpus.enabled) }}
{{- fail "vgpu.enabled needs gpus.enabled: slices are cut from GPUs that the GPU plugin owns" }}
{{- end }}
{{- if and (has "all" .Values.gpus.devicePlugin) (gt (len .Values.gpus.devicePlugin) 1) }}
{{- fail (printf "gpus.devicePlugin=[%s]: all includes every GPU: give all, or the UUIDs" (join ", " .Values.gpus.devicePlugin)) }}
{{- end }}
{{- if and .Values.vgpu.enabled (has "all" .Values.gpus.devicePlugin) }}
{{- fail "vgpu.enabled and gpus.devicePlugin=[all] want the same GPUs: name the UUIDs of those that are handed out as nvidia.com/gpu" }}
{{- end }}
{{- if and (eq .Values.vgpu.limits "hami-core") (not .Values.vgpu.limiterDir) }}
{{- fail "vgpu.limits=hami-core needs vgpu.limiterDir: name the directory of the nodes that holds HAMi-core's libvgpu.so and ld.so.preload" }}
{{- end }}
{{- if and (eq .Values.vgpu.limits "native") .Values.vgpu.limiterDir }}
{{- fail "vgpu.limits=native and vgpu.limiterDir contradict each other: the directory has HAMi-core; leave it empty, or set vgpu.limits=hami-core" }}
{{- end }}
{{- if and .Values.vgpu.enabled (eq .Values.vgpu.limits "native") (not (and .Values.hardware.privileged .Values.vgpu.nriSocket)) }}
{{- fail "vgpu.limits=native needs hardware.privileged and vgpu.nriSocket: the driver takes limits from administrators alone, and NRI tells when a container's cgroup is there" }}
{{- end }}
{{- if and (eq .Values.vgpu.limits "library") .Values.vgpu.limiterDir }}
{{- fail "vgpu.limits=library and vgpu.limiterDir contradict each other: the directory has HAMi-core; leave it empty, or set vgpu.limits=hami-core" }}
{{- end }}
{{- if .Values.gpus.enabled }}
{{- $forms := .Values.gpus.forms | default dict }}
{{- $vfio := .Values.gpus.passthrough.enabled }}
{{- include "gpufabric.check.form" (dict "at" "gpus.forms.default" "value" ($forms.default | default dict) "vfio" $vfio) }}
{{- range $i, $rule := $forms.nodes }}
{{- include "gpufabric.check.form" (dict "at" (printf "gpus.forms.nodes[%d]" $i) "value" $rule "vfio" $vfio) }}
{{- end }}
{{- if and $vfio (not .Values.hardware.privileged) }}
{{- fail "gpus.passthrough.enabled needs hardware.privileged: the plugin changes the drivers of PCI functions in the nodes' /sys" }}
{{- end }}
{{- end }}
{{- if and .Values.gpus.passthrough.fabricManager (not .Values.gpus.passthrough.enabled) }}
{{- fail "gpus.passthrough.fabricManager needs gpus.passthrough.enabled: partitions are activated for virtual machines alone" }}
{{- end }}
{{- if and .Values.scheduler.enabled (eq .Values.scheduler.name "default-scheduler") }}
{{- fail "scheduler.name is default-scheduler, which the cluster's own scheduler has: both would place the same pods; choose another, which pods then name in schedulerName" }}
{{- end }}
{{- if and .Values.rdma.enabled .Values.rdma.nriSocket (not .Values.rdma.plugin.hostNetwork) }}
{{- fail "rdma.nriSocket needs rdma.plugin.hostNetwork: devices move between the node's network namespace and those of pods" }}
{{- end }}
{{- if and .Values.rdma.enabled (or .Values.rdma.interfaces.up .Values.rdma.interfaces.mtu) (not .Values.rdma.plugin.hostNetwork) }}
{{- fail "rdma.interfaces needs rdma.plugin.hostNetwork: the devices' interfaces are in the node's network namespace" }}
{{- end }}
{{- end }}

{{- define "gpufabric.check.form" -}}
{{- if and (eq (.value.form | default "whole") "vfio") (not .vfio) }}
{{- fail (printf "%s: form vfio needs gpus.passthrough.enabled: on its nodes the plugin binds GPUs to vfio-pci" .at) }}
{{- end }}
{{- if and (eq (.value.form | default "whole") "mig") (not .value.migProfiles) }}
{{- fail (printf "%s: form mig needs migProfiles, such as [1g.10gb]: only named profiles are offered" .at) }}
{{- end }}
{{- if and (ne (.value.form | default "whole") "mig") .value.migProfiles }}
{{- fail (printf "%s: migProfiles with form %s: only form mig has profiles" .at (.value.form | default "whole")) }}
{{- end }}
{{- if and (eq (.value.form | default "whole") "shares") (not .value.shares) }}
{{- fail (printf "%s: form shares needs shares, the number of them that a GPU has, such as 4" .at) }}
{{- end }}
{{- if and (ne (.value.form | default "whole") "shares") .value.shares }}
{{- fail (printf "%s: shares with form %s: only form shares has a number of them" .at (.value.form | default "whole")) }}
{{- end }}
{{- end }}

{{/* One installation a cluster: driver names, DeviceClasses and CRDs are the cluster's. */}}
{{- define "gpufabric.check.installed" -}}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items }}
{{- $labels := .metadata.labels | default dict }}
{{- $annotations := .metadata.annotations | default dict }}
{{- if and (eq (dig "app.kubernetes.io/part-of" "" $labels) "gpufabric") (hasSuffix "-plugin" (dig "app.kubernetes.io/component" "" $labels)) }}
{{- /* What was rendered by Helm and applied by others carries no such annotations. */}}
{{- $name := dig "meta.helm.sh/release-name" (dig "app.kubernetes.io/instance" "" $labels) $annotations }}
{{- $namespace := dig "meta.helm.sh/release-namespace" $.Release.Namespace $annotations }}
{{- if or (ne $name $.Release.Name) (ne $namespace $.Release.Namespace) }}
{{- fail (printf "gpufabric is installed already, as release %q in namespace %q, and its drivers and CRDs serve the whole cluster: upgrade that release, or uninstall it first" $name $namespace) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The API server refuses a CRD without a version in which objects are stored, and would do so after Helm had applied what comes before CRDs. */}}
{{- define "gpufabric.check.crdVersions" -}}
{{- range include "gpufabric.crdFiles" . | fromJsonArray }}
{{- $crd := $.Files.Get . | fromYaml }}
{{- $versions := list }}
{{- range $crd.spec.versions }}{{ $versions = append $versions .name }}{{ end }}
{{- $live := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $crd.metadata.name }}
{{- range dig "status" "storedVersions" list ($live | default dict) }}
{{- if not (has . $versions) }}
{{- fail (printf "CustomResourceDefinition %s stores objects in version %s, and chart %s has %s alone: the CRD is of a later release, so install that release's chart or a later one" $crd.metadata.name . $.Chart.Version (join ", " $versions)) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/*
What another owner has already put where ours would go. Helm would stop at the first, and drivers it would not see. On nodes that nodePlugins.nodeSelector does
not select another driver may serve: then what the selected nodes have decides, and not the names of DaemonSets.
*/}}
{{- define "gpufabric.check.foreign" -}}
{{- $found := list }}
{{- $crds := list }}
{{- if not .Values.crds.takeOver }}
{{- range include "gpufabric.crdFiles" . | fromJsonArray }}
{{- $name := ($.Files.Get . | fromYaml).metadata.name }}
{{- $live := lookup "apiextensions.k8s.io/v1" "CustomResourceDefinition" "" $name }}
{{- if and $live (ne (include "gpufabric.isOurs" (dict "root" $ "object" $live)) "true") }}
{{- $crds = append $crds (printf "CustomResourceDefinition %s%s" $name (include "gpufabric.ownedBy" $live)) }}
{{- end }}
{{- end }}
{{- end }}
{{- range (include "gpufabric.deviceClassNames" . | fromJsonArray) }}
{{- $live := lookup "resource.k8s.io/v1" "DeviceClass" "" . }}
{{- if and $live (ne (include "gpufabric.isOurs" (dict "root" $ "object" $live)) "true") }}
{{- $found = append $found (printf "DeviceClass %s%s" . (include "gpufabric.ownedBy" $live)) }}
{{- end }}
{{- end }}
{{- $table := .Files.Get "files/rivals.yaml" | fromYaml }}
{{- $rivals := $table.daemonSets.domains }}
{{- if .Values.gpus.enabled }}{{ $rivals = concat $rivals $table.daemonSets.gpus }}{{ end }}
{{- if .Values.rdma.enabled }}{{ $rivals = concat $rivals $table.daemonSets.rdma }}{{ end }}
{{- if not .Values.nodePlugins.nodeSelector }}
{{- range (lookup "apps/v1" "DaemonSet" "" "").items }}
{{- $one := . }}
{{- $labels := .metadata.labels | default dict }}
{{- $names := list .metadata.name }}
{{- range .spec.template.spec.containers }}{{ $names = append $names .image }}{{ end }}
{{- $except := eq (dig "app.kubernetes.io/part-of" "" $labels) "gpufabric" }}
{{- range $table.except }}{{ if contains . (join " " $names) }}{{ $except = true }}{{ end }}{{ end }}
{{- range $rivals }}
{{- if and (not $except) (contains . (join " " $names)) }}
{{- $found = append $found (printf "DaemonSet %s/%s" $one.metadata.namespace $one.metadata.name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.computeDomains.enabled }}
{{- range (lookup "apps/v1" "Deployment" "" "").items }}
{{- $one := . }}
{{- $names := list .metadata.name }}
{{- range .spec.template.spec.containers }}{{ $names = append $names .image }}{{ end }}
{{- range $table.daemonSets.domains }}
{{- if contains . (join " " $names) }}
{{- $found = append $found (printf "Deployment %s/%s (of every ComputeDomain, on whatever nodes: set computeDomains.enabled=false while it runs)" $one.metadata.namespace $one.metadata.name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- $found = concat $found (include "gpufabric.foreignOnNodes" (dict "root" . "table" $table) | fromJsonArray) }}
{{- with concat $crds ($found | uniq) }}
{{- $advice := "Uninstall that first (two drivers would hand out the same devices); to install in spite of it set takeOver=true, with Helm's --take-ownership where CRDs or DeviceClasses are named" }}
{{- if and $crds (not $found) }}
{{- $advice = "No driver of theirs was found. To install beside them set crds.takeOver=true, with Helm's --take-ownership: the kinds of this chart have all of their fields, and keep them only while this chart's CRDs are applied (docs/install.md, beside the GPU operator). takeOver=true goes on in spite of everything, and where nothing of them is needed, Uninstall them first" }}
{{- end }}
{{- fail (printf "another owner already serves what gpufabric would: %s. %s" (join ", " .) $advice) }}
{{- end }}
{{- end }}

{{/* Up to five of the selected nodes that offer GPUs by a device plugin, or have ResourceSlices of our drivers that are not ours, as a JSON list. */}}
{{- define "gpufabric.foreignOnNodes" -}}
{{- $values := .root.Values }}
{{- $resources := .table.resources.gpus }}
{{- $suffixes := dict "compute-domain.nvidia.com" "-compute-domain" "gpu.nvidia.com" "-gpu" "rdma.gpufabric.io" "-rdma" }}
{{- $enabled := dict "compute-domain.nvidia.com" true "gpu.nvidia.com" $values.gpus.enabled "rdma.gpufabric.io" $values.rdma.enabled }}
{{- $ours := dict }}
{{- $foreign := dict }}
{{- range (lookup "resource.k8s.io/v1" "ResourceSlice" "" "").items }}
{{- $node := .spec.nodeName | default "" }}
{{- if and $node (hasKey $suffixes .spec.driver) }}
{{- if eq .spec.pool.name (printf "%s%s" $node (get $suffixes .spec.driver)) }}
{{- if eq .spec.driver "gpu.nvidia.com" }}{{ $_ := set $ours $node true }}{{ end }}
{{- else if get $enabled .spec.driver }}
{{- $_ := set $foreign $node (printf "ResourceSlice %s of driver %s on node %s" .metadata.name .spec.driver $node) }}
{{- end }}
{{- end }}
{{- end }}
{{- $found := list }}
{{- range (lookup "v1" "Node" "" "").items }}
{{- $node := . }}
{{- $selected := true }}
{{- range $key, $value := $values.nodePlugins.nodeSelector }}
{{- if ne (dig $key "" ($node.metadata.labels | default dict)) $value }}{{ $selected = false }}{{ end }}
{{- end }}
{{- if $selected }}
{{- with get $foreign .metadata.name }}{{ $found = append $found . }}{{ end }}
{{- if and $values.gpus.enabled (not $values.gpus.devicePlugin) (not (hasKey $ours .metadata.name)) }}
{{- range $name, $quantity := dig "status" "allocatable" dict . }}
{{- range $resources }}
{{- if and (hasPrefix . $name) (ne (toString $quantity) "0") }}
{{- $found = append $found (printf "%s by a device plugin on node %s" $name $node.metadata.name) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- $found = $found | uniq }}
{{- slice $found 0 (min 5 (len $found)) | toJson }}
{{- end }}

{{/* " (of the Helm release X of namespace Y)" where Helm has written that on an object. */}}
{{- define "gpufabric.ownedBy" -}}
{{- $annotations := .metadata.annotations | default dict }}
{{- with dig "meta.helm.sh/release-name" "" $annotations }} (of the Helm release {{ . }} of namespace {{ dig "meta.helm.sh/release-namespace" "" $annotations }}){{ end }}
{{- end }}

{{- define "gpufabric.isOurs" -}}
{{- $labels := .object.metadata.labels | default dict }}
{{- $annotations := .object.metadata.annotations | default dict }}
{{- $thisRelease := and (eq (dig "meta.helm.sh/release-name" "" $annotations) .root.Release.Name) (eq (dig "meta.helm.sh/release-namespace" "" $annotations) .root.Release.Namespace) }}
{{- or (eq (dig "app.kubernetes.io/part-of" "" $labels) "gpufabric") $thisRelease }}
{{- end }}

{{- define "gpufabric.deviceClassNames" -}}
{{- $names := list }}
{{- if .Values.computeDomains.enabled }}
{{- $names = concat $names (list "compute-domain-daemon.nvidia.com" "compute-domain-default-channel.nvidia.com") }}
{{- end }}
{{- if .Values.gpus.enabled }}
{{- $names = concat $names (list "gpu.nvidia.com" "mig.nvidia.com" "gpu-share.gpufabric.io") }}
{{- end }}
{{- if .Values.rdma.enabled }}
{{- $names = append $names "rdma.gpufabric.io" }}
{{- range .Values.rdma.extendedResources }}
{{- $names = append $names (include "gpufabric.rdmaClass" .) }}
{{- end }}
{{- end }}
{{- $names | toJson }}
{{- end }}

{{/* Name of the DeviceClass of an extended resource: rdma/hca_shared_devices_a is rdma-hca-shared-devices-a.rdma.gpufabric.io. */}}
{{- define "gpufabric.rdmaClass" -}}
{{ regexReplaceAll "[^a-z0-9]+" (lower .) "-" }}.rdma.gpufabric.io
{{- end }}
