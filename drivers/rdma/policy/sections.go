package policy

import (
	"cmp"
	"errors"
	"fmt"
	"hash/fnv"
	"slices"
	"strings"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
	"gpufabric.io/drivers/rdma/config"
)

// Names of the sections in the status, as the network operator has them.
const (
	sectionOFED  = "state-OFED"
	sectionPools = "state-RDMA-device-plugin"
	sectionPeer  = "state-NV-Peer"
)

func absent(name string) section {
	return section{AppliedState: mellanox.AppliedState{Name: name, State: mellanox.StateIgnore}}
}

// pools makes an RDMAPool for each entry of the device plugin's configuration.
func (r *reconciler) pools(p *mellanox.NicClusterPolicy, made []v1alpha1.RDMAPool) section {
	s := absent(sectionPools)
	field, plugin := "devicePlugin", p.Spec.DevicePlugin
	if plugin == nil {
		field, plugin = "rdmaSharedDevicePlugin", p.Spec.RDMASharedDevicePlugin
	}
	if plugin == nil {
		return s
	}
	if plugin.Config == nil {
		s.State, s.Message = mellanox.StateReady, "without "+field+".config no pool is made: nodes serve the chart's ConfigMap (rdma.configMap) "+
			"and RDMAPools"
		return s
	}
	parsed, err := config.Parse([]byte(*plugin.Config))
	if err != nil {
		// The pools of the last valid configuration stay, except those that the valid entries replace.
		sound := make(map[string]bool)
		if parsed != nil {
			for n, name := range poolNames(p.Name, parsed.Pools) {
				s.objects = append(s.objects, poolOf(name, parsed.Pools[n]))
				sound[name] = true
			}
		}
		for i := range made {
			if !sound[made[i].Name] {
				s.objects = append(s.objects, newPool(made[i].Name, made[i].Spec))
			}
		}
		s.State, s.Message = mellanox.StateError, "spec."+field+".config has mistakes: "+problems(err)
		return s
	}
	var waiting []string
	names := poolNames(p.Name, parsed.Pools)
	for n, c := range parsed.Pools {
		name := names[n]
		s.objects = append(s.objects, poolOf(name, c))
		i := slices.IndexFunc(made, func(m v1alpha1.RDMAPool) bool { return m.Name == name })
		switch {
		case i < 0:
			waiting = append(waiting, "RDMAPool "+name+" is being made")
		case !meta.IsStatusConditionTrue(made[i].Status.Conditions, v1alpha1.RDMAPoolReady):
			reason := "nobody has reported on it yet"
			if ready := meta.FindStatusCondition(made[i].Status.Conditions, v1alpha1.RDMAPoolReady); ready != nil {
				reason = ready.Message
			}
			waiting = append(waiting, fmt.Sprintf("RDMAPool %s is not ready: %s", name, reason))
		}
	}
	s.State, s.Message = mellanox.StateReady, fmt.Sprintf("%d pools", len(parsed.Pools))
	if len(waiting) > 0 {
		s.State, s.Message = mellanox.StateNotReady, strings.Join(waiting, "; ")
	}
	return s
}

// poolNames names the pools of a policy's resources. A resource's name may have capitals and underscores, an RDMAPool's may not. A
// hash keeps names apart that would become equal.
func poolNames(policy string, pools []v1alpha1.RDMAPoolConfig) []string {
	names, count := make([]string, len(pools)), make(map[string]int)
	for i, c := range pools {
		names[i] = policy + "-" + strings.ToLower(strings.ReplaceAll(c.ResourceName, "_", "-"))
		count[names[i]]++
	}
	for i, c := range pools {
		if count[names[i]] > 1 {
			hash := fnv.New32a()
			_, _ = hash.Write([]byte(c.ResourceName))
			names[i] = fmt.Sprintf("%s-%08x", names[i], hash.Sum32())
		}
	}
	return names
}

// poolOf is the RDMAPool of an entry, for every node with a NIC.
func poolOf(name string, c v1alpha1.RDMAPoolConfig) *v1alpha1.RDMAPool {
	selector := &metav1.LabelSelector{MatchLabels: map[string]string{labelNIC: "true"}}
	return newPool(name, v1alpha1.RDMAPoolSpec{NodeSelector: selector, RDMAPoolConfig: c})
}

func newPool(name string, spec v1alpha1.RDMAPoolSpec) *v1alpha1.RDMAPool {
	return &v1alpha1.RDMAPool{
		TypeMeta:   metav1.TypeMeta{APIVersion: v1alpha1.SchemeGroupVersion().String(), Kind: "RDMAPool"},
		ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec,
	}
}

// problems writes the mistakes of a configuration in one line.
func problems(err error) string {
	var list config.Error
	if !errors.As(err, &list) {
		return err.Error()
	}
	texts := make([]string, len(list))
	for i, p := range list {
		texts[i] = p.String()
	}
	return strings.Join(texts, "; ")
}

// ofed is the NIC's kernel driver on every node with a NIC.
func (r *reconciler) ofed(p *mellanox.NicClusterPolicy, nodes []metav1.PartialObjectMetadata, is running) section {
	if p.Spec.OFEDDriver == nil {
		return absent(sectionOFED)
	}
	spec := p.Spec.OFEDDriver
	d := driver{
		kind: kindOFED, image: spec.ImageSpec, template: func(version string) string { return ofedTemplate(r.OFEDImage, version) },
		needs: []string{labelNIC}, mounts: ofedMounts(), spec: spec, upgrade: upgradeOf(spec.UpgradePolicy),
	}
	return r.drivers(p, sectionOFED, d, nodes, is)
}

// peer is the module that lets a NIC access GPU memory, on every node with both.
func (r *reconciler) peer(p *mellanox.NicClusterPolicy, nodes []metav1.PartialObjectMetadata, is running) section {
	if p.Spec.NVPeerDriver == nil {
		return absent(sectionPeer)
	}
	d := driver{
		kind: kindPeer, image: p.Spec.NVPeerDriver.ImageSpec, template: func(string) string { return cmp.Or(r.PeerImage, peerImage) },
		needs: []string{labelNIC, labelGPU}, mounts: peerMounts(p.Spec.NVPeerDriver.GPUDriverSourcePath),
	}
	return r.drivers(p, sectionPeer, d, nodes, is)
}

// inherit fills an image's empty fields from the policy's global section.
func inherit(image mellanox.ImageSpec, global *mellanox.GlobalSpec) (mellanox.ImageSpec, error) {
	if global != nil {
		image.Repository, image.Version = cmp.Or(image.Repository, global.Repository), cmp.Or(image.Version, global.Version)
		if len(image.ImagePullSecrets) == 0 {
			image.ImagePullSecrets = global.ImagePullSecrets
		}
	}
	var missing []string
	for _, field := range []struct{ name, value string }{{"repository", image.Repository}, {"version", image.Version}} {
		if field.value == "" {
			missing = append(missing, field.name)
		}
	}
	if len(missing) > 0 {
		return image, fmt.Errorf("the image %s has no %s: give it here or in spec.global", image.Image, strings.Join(missing, " and no "))
	}
	return image, nil
}

// running are the present objects of policies.
type running struct {
	sets []appsv1.DaemonSet
	pods []corev1.Pod // of the drivers
}

// kept is a present DaemonSet, to be applied again unchanged.
func kept(made *appsv1.DaemonSet) *appsv1.DaemonSet {
	return &appsv1.DaemonSet{
		TypeMeta:   metav1.TypeMeta{APIVersion: "apps/v1", Kind: "DaemonSet"},
		ObjectMeta: metav1.ObjectMeta{Name: made.Name, Namespace: made.Namespace}, Spec: *made.Spec.DeepCopy(),
	}
}

// drivers makes a DaemonSet for each platform among the nodes that need the driver, and reports their progress.
func (r *reconciler) drivers(p *mellanox.NicClusterPolicy, name string, d driver, nodes []metav1.PartialObjectMetadata,
	is running) section {
	s, made := absent(name), is.sets
	image, err := inherit(d.image, p.Spec.Global)
	if err != nil {
		// Running drivers stay, as with a configuration that has mistakes.
		for i := range made {
			if strings.HasPrefix(made[i].Name, d.kind+"-") {
				s.objects = append(s.objects, kept(&made[i]))
			}
		}
		s.State, s.Message = mellanox.StateError, err.Error()
		return s
	}
	d.image = image
	var waiting, incomplete []string
	platforms := make(map[platform]bool)
	for _, node := range nodes {
		if !d.wanted(node.Labels) {
			continue
		}
		on, missing := platformOf(node.Labels)
		if missing != "" {
			incomplete = append(incomplete, fmt.Sprintf("node %s has no label %s", node.Name, missing))
			continue
		}
		platforms[on] = true
	}
	var sets, there []*appsv1.DaemonSet
	for _, on := range sorted(platforms) {
		set := d.daemonSet(r.Namespace, on)
		if err := r.permit(set.Spec.Template.Spec.Containers[0].Image); err != nil {
			// A running driver stays: its end would take the NIC from every pod of the node.
			for i := range made {
				if strings.HasPrefix(made[i].Name, d.kind+"-") {
					s.stay = append(s.stay, &made[i])
				}
			}
			s.State, s.Message = mellanox.StateError, err.Error()
			return s
		}
		sets = append(sets, set)
	}
	for i := range made {
		there = append(there, &made[i])
	}
	d.upgrade.strategies(sets, there)
	var desired, available int32
	for _, set := range sets {
		s.objects = append(s.objects, set)
		i := slices.IndexFunc(made, func(m appsv1.DaemonSet) bool { return m.Name == set.Name })
		if i < 0 {
			waiting = append(waiting, "DaemonSet "+set.Name+" is being made")
			continue
		}
		status := made[i].Status
		desired += status.DesiredNumberScheduled
		available += status.NumberAvailable
		if made[i].Generation != status.ObservedGeneration || status.DesiredNumberScheduled == 0 ||
			status.NumberAvailable < status.DesiredNumberScheduled {
			waiting = append(waiting, fmt.Sprintf("DaemonSet %s: %d of %d pods are available", set.Name, status.NumberAvailable,
				status.DesiredNumberScheduled))
			waiting = append(waiting, troubles(set.Name, is.pods)...)
		}
		if progress := d.upgrade.progress(&made[i]); progress != "" && made[i].Generation == status.ObservedGeneration {
			waiting = append(waiting, progress)
		}
	}
	waiting = append(waiting, incomplete...)
	switch {
	case len(waiting) > 0:
		s.State, s.Message = mellanox.StateNotReady, strings.Join(waiting, "; ")
	case len(platforms) == 0:
		s.State, s.Message = mellanox.StateReady, "no node carries "+strings.Join(d.needs, " and ")+" = true, so there is nothing to run"
	default:
		s.State, s.Message = mellanox.StateReady, fmt.Sprintf("%d of %d pods are available", available, desired)
	}
	return s
}
