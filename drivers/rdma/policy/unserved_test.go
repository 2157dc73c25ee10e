package policy

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/yaml"

	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
)

// specOf reads a policy's spec from YAML, as it is stored and as the controller reads it.
func specOf(t *testing.T, content string) (map[string]any, *mellanox.NicClusterPolicySpec) {
	t.Helper()
	object := &unstructured.Unstructured{}
	text, err := yaml.YAMLToJSON([]byte("{apiVersion: mellanox.com/v1alpha1, kind: NicClusterPolicy, spec: " + content + "}"))
	must(t, err)
	must(t, object.UnmarshalJSON(text))
	raw, spec := object.Object["spec"].(map[string]any), &mellanox.NicClusterPolicySpec{}
	must(t, runtime.DefaultUnstructuredConverter.FromUnstructured(raw, spec))
	return raw, spec
}

// unservedText lists the requests of a spec that are not met, a section a line.
func unservedText(t *testing.T, content string) string {
	t.Helper()
	sections, err := unservedSections(specOf(t, content))
	must(t, err)
	var lines []string
	for _, s := range sections {
		if s.State != mellanox.StateNotReady {
			t.Errorf("%s is %s", s.Name, s.State)
		}
		lines = append(lines, s.Message)
	}
	return strings.Join(lines, "\n")
}

func TestUnservedNamesEveryFieldThatWasNotUsed(t *testing.T) {
	const byHand = "; so pods of the driver are not replaced automatically: drain each node and delete its pod, or leave that out"
	const alone = ", which is the network operator's alone; docs/resources/nicclusterpolicy.md names the replacement"
	for _, test := range []struct{ name, spec, want string }{
		{"all of it is served", "{ofedDriver: {image: a, repository: b, version: c}}", ""},
		{"pods that are replaced by hand", "{ofedDriver: {image: a, upgradePolicy: {autoUpgrade: false, drain: {enable: true}, x: 1}}}", ""},
		{"pods that are replaced by the controller", "{ofedDriver: {image: a, upgradePolicy: {autoUpgrade: true, maxParallelUpgrades: 3}}}", ""},
		{"without a drain",
			"{ofedDriver: {image: a, upgradePolicy: {autoUpgrade: true, drain: {enable: false, podSelector: a, force: true}}}}", ""},
		{
			"nodes that are drained before",
			"{ofedDriver: {image: a, upgradePolicy: {autoUpgrade: true, drain: {force: true}, safeLoad: true, " +
				"waitForCompletion: {podSelector: a}}}}",
			"not served: ofedDriver.upgradePolicy.drain, ofedDriver.upgradePolicy.safeLoad, ofedDriver.upgradePolicy.waitForCompletion" + byHand,
		},
		{"a drain by its default", "{ofedDriver: {image: a, upgradePolicy: {autoUpgrade: true, drain: {}}}}",
			"not served: ofedDriver.upgradePolicy.drain" + byHand},
		{"whole probes", "{ofedDriver: {image: a, startupProbe: {initialDelaySeconds: 30, periodSeconds: 20, failureThreshold: 120, " +
			"timeoutSeconds: 20}}}", ""},
		{"a field of a probe", "{ofedDriver: {image: a, livenessProbe: {periodSeconds: 20, successThreshold: 3}}}",
			"not served: ofedDriver.livenessProbe.successThreshold"},
		{"a field of a variable", "{ofedDriver: {image: a, env: [{name: A, value: b}, {name: B, valeu: c}]}}",
			"not served: ofedDriver.env[1].valeu"},
		{"a field of an upgrade", "{ofedDriver: {image: a, upgradePolicy: {autoUpgrade: true, canary: {nodes: 3}}}}",
			"not served: ofedDriver.upgradePolicy.canary"},
		{"fields of later releases", "{ofedDriver: {image: a, forcePrecompiled: true, certConfig: {name: c}, repoConfig: {name: r}}}",
			"not served: ofedDriver.certConfig, ofedDriver.forcePrecompiled, ofedDriver.repoConfig"},
		{"resources of the driver", "{ofedDriver: {image: a, containerResources: [{name: mofed-container, limits: {cpu: 1}}]}}",
			"not served: ofedDriver.containerResources"},
		{"a flag that is off", "{rdmaSharedDevicePlugin: {image: a, useCdi: false}}", ""},
		{"a flag that is on", "{rdmaSharedDevicePlugin: {image: a, useCdi: true}}", "not served: rdmaSharedDevicePlugin.useCdi"},
		{"resources of a plugin that does not run", "{devicePlugin: {image: a, containerResources: [{name: rdma-shared-dp}]}}", ""},
		{"the later of the two names of a section", "{devicePlugin: {image: a}, rdmaSharedDevicePlugin: {image: a}}",
			"not served: rdmaSharedDevicePlugin" + alone},
		{"a section in the wrong one", "{ofedDriver: {image: a, nvIpam: {image: b}}}", "not served: ofedDriver.nvIpam"},
		{"tolerations, which the drivers have anyway", "{tolerations: [{operator: Exists}]}", ""},
		{"of Deployments, of which a policy makes none",
			"{deploymentTolerations: [{key: a, operator: Exists}], deploymentNodeAffinity: {preferred: [{weight: 1}]}}", ""},
		{"an optional part that is off", "{psp: {enabled: false}}", ""},
		{"one that is on", "{psp: {enabled: true}}", "not served: psp" + alone},
		{"nodes", "{nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: [{matchExpressions: [{key: a}]}]}}}",
			"not served: nodeAffinity" + alone},
		{"empty fields", "{nvPeerDriver: {image: a, imagePullSecrets: [], env: {}}}", ""},
		{"an empty section", "{global: {}}", ""},
		{"two sections", "{nvIpam: {image: a, enableWebhook: false}, secondaryNetwork: {multus: {image: a}}}",
			"not served: nvIpam" + alone + "\nnot served: secondaryNetwork" + alone},
	} {
		t.Run(test.name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, unservedText(t, test.spec)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestUnservedNamesTheOneWrongFieldOfTwoHundred(t *testing.T) {
	var env strings.Builder
	for i := range 95 {
		value := "value"
		if i == 57 {
			value = "vlaue"
		}
		fmt.Fprintf(&env, "{name: V%d, %s: x},", i, value)
	}
	got := unservedText(t, "{ofedDriver: {image: a, repository: b, version: c, startupProbe: {periodSeconds: 1}, env: ["+env.String()+"]}}")
	if got != "not served: ofedDriver.env[57].vlaue" {
		t.Errorf("got %q", got)
	}
	var wrong strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&wrong, "field%04d: x,", i)
	}
	got = unservedText(t, "{ofedDriver: {image: a, "+wrong.String()+"}}")
	if len(got) > maxNamed+100 || !strings.Contains(got, "ofedDriver.field0000, ofedDriver.field0001") || !strings.Contains(got, " more") {
		t.Errorf("2000 wrong fields make %d bytes", len(got))
	}
}

// A policy is never ready while something of it is not served.
func TestPolicyIsNotReadyWhileAnUpgradeIsUnserved(t *testing.T) {
	ready := section{AppliedState: mellanox.AppliedState{Name: sectionOFED, State: mellanox.StateReady}}
	for asked, want := range map[string]mellanox.State{
		"drain: {enable: true}": mellanox.StateNotReady,
		"drain: {}":             mellanox.StateNotReady,
		"safeLoad: true":        mellanox.StateNotReady,
		"waitForCompletion: {podSelector: app=a}": mellanox.StateNotReady,
		"maxParallelUpgrades: 2":                  mellanox.StateReady,
		"drain: {enable: false}":                  mellanox.StateReady,
		"waitForCompletion: {timeoutSeconds: 3}":  mellanox.StateReady,
	} {
		t.Run(asked, func(t *testing.T) {
			unknown, err := unservedSections(specOf(t, "{ofedDriver: {image: a, repository: b, version: c, upgradePolicy: {autoUpgrade: true, "+
				asked+"}}}"))
			must(t, err)
			status := summarise(&mellanox.NicClusterPolicy{}, append([]section{ready}, unknown...))
			field, _, _ := strings.Cut(asked, ":")
			if status.State != want || want == mellanox.StateNotReady && !strings.Contains(status.Reason, "upgradePolicy."+field) {
				t.Errorf("the policy is %s (%s), want %s", status.State, status.Reason, want)
			}
		})
	}
}

// leaf is a field of a policy's spec that holds a value.
type leaf struct {
	path   string
	change func()
}

// leaves lists the fields below v that are set, with functions that change each.
func leaves(path string, v reflect.Value) []leaf {
	switch v.Kind() {
	case reflect.Pointer:
		if v.IsNil() {
			return nil
		}
		return leaves(path, v.Elem())
	case reflect.Struct:
		var all []leaf
		for i := range v.NumField() {
			name, _, _ := strings.Cut(v.Type().Field(i).Tag.Get("json"), ",")
			at := strings.TrimPrefix(path+"."+name, ".")
			if name == "" {
				at = path // embedded
			}
			all = append(all, leaves(at, v.Field(i))...)
		}
		return all
	}
	if v.IsZero() {
		return nil
	}
	return []leaf{{path, func() {
		switch value := v.Addr().Interface().(type) {
		case *string:
			*value += "x"
		case *bool:
			*value = !*value
		case *int32:
			*value++
		case *int64:
			*value++
		case *[]string:
			*value = append(*value, "x")
		case *[]corev1.EnvVar:
			(*value)[0].Value += "x"
		default:
			panic(fmt.Sprintf("a field of type %T at %s: say here how to change it", value, path))
		}
	}}}
}

// count returns the paths of all fields of a type, set or not.
func count(path string, t reflect.Type) []string {
	switch t.Kind() {
	case reflect.Pointer:
		return count(path, t.Elem())
	case reflect.Struct:
		var all []string
		for i := range t.NumField() {
			name, _, _ := strings.Cut(t.Field(i).Tag.Get("json"), ",")
			at := strings.TrimPrefix(path+"."+name, ".")
			if name == "" {
				at = path
			}
			all = append(all, count(at, t.Field(i).Type)...)
		}
		return all
	}
	return []string{path}
}

// The comparison of a policy with its type is worth as much as the type: a field that the type has and no code uses would count as
// served. So each field, when it changes, changes what is made, or is named.
func TestPolicyUsesOrNamesEveryField(t *testing.T) {
	image := mellanox.ImageSpec{Image: "i", Repository: "registry.example/r", Version: "v", ImagePullSecrets: []string{"s"}}
	probe := &mellanox.ProbeSpec{InitialDelaySeconds: 1, PeriodSeconds: 2, FailureThreshold: 3, TimeoutSeconds: 4}
	config := ptr.To(`{"configList": [{"resourceName": "a", "devices": ["ib0"]}]}`)
	driver := mellanox.OFEDDriverSpec{ImageSpec: image, StartupProbe: probe, LivenessProbe: probe, ReadinessProbe: probe,
		Env: []corev1.EnvVar{{Name: "A", Value: "b"}}, TerminationGracePeriodSeconds: ptr.To[int64](5),
		UpgradePolicy: &mellanox.UpgradePolicySpec{AutoUpgrade: true, MaxParallelUpgrades: ptr.To[int32](2)}}
	drained, plain := *driver.DeepCopy(), mellanox.OFEDDriverSpec{ImageSpec: mellanox.ImageSpec{Image: "i"}}
	drained.UpgradePolicy = &mellanox.UpgradePolicySpec{AutoUpgrade: true, SafeLoad: true, Drain: &mellanox.DrainSpec{Enable: ptr.To(true)},
		WaitForCompletion: &mellanox.WaitForCompletionSpec{PodSelector: "a"}}
	specs := []mellanox.NicClusterPolicySpec{
		{OFEDDriver: &driver, DevicePlugin: &mellanox.DevicePluginSpec{ImageSpec: image, Config: config},
			NVPeerDriver: &mellanox.NVPeerDriverSpec{ImageSpec: image, GPUDriverSourcePath: "/run/a"}},
		{OFEDDriver: &drained, RDMASharedDevicePlugin: &mellanox.DevicePluginSpec{ImageSpec: image, Config: config}},
		{OFEDDriver: &plain, Global: &mellanox.GlobalSpec{Repository: "registry.example/r", Version: "v", ImagePullSecrets: []string{"s"}}},
	}
	node := metav1.PartialObjectMetadata{ObjectMeta: metav1.ObjectMeta{Name: "n", Labels: map[string]string{labelNIC: "true", labelGPU: "true",
		labelOS: "ubuntu", labelRelease: "24.04", labelKernel: "6.8", labelArch: "amd64"}}}
	r := &reconciler{Options: Options{Images: []string{"registry.example/"}}}
	result := func(spec *mellanox.NicClusterPolicySpec) string {
		p := &mellanox.NicClusterPolicy{Spec: *spec}
		nodes := []metav1.PartialObjectMetadata{node}
		stored, err := runtime.DefaultUnstructuredConverter.ToUnstructured(spec)
		must(t, err)
		unknown, err := unservedSections(stored, spec)
		must(t, err)
		var text strings.Builder
		for _, s := range append([]section{r.ofed(p, nodes, running{}), r.pools(p, nil), r.peer(p, nodes, running{})}, unknown...) {
			content, err := json.Marshal([]any{s.AppliedState, s.objects})
			must(t, err)
			text.Write(content)
		}
		return text.String()
	}
	used := make(map[string]bool)
	for i := range specs {
		before := result(&specs[i])
		stored, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&specs[i])
		must(t, err)
		named, err := unserved(stored, &specs[i])
		must(t, err)
		for n := range leaves("", reflect.ValueOf(&specs[i])) {
			changed := specs[i].DeepCopy()
			l := leaves("", reflect.ValueOf(changed))[n]
			l.change()
			below := false
			for _, paths := range named {
				for _, path := range paths {
					below = below || l.path == path || strings.HasPrefix(l.path, path+".")
				}
			}
			if below || result(changed) != before {
				used[l.path] = true
			}
		}
	}
	// No container runs the image of a device plugin: the rdma-plugin serves the pools.
	for _, plugin := range []string{"devicePlugin", "rdmaSharedDevicePlugin"} {
		for _, field := range []string{"image", "repository", "version", "imagePullSecrets"} {
			used[plugin+"."+field] = true
		}
	}
	for _, path := range count("", reflect.TypeFor[mellanox.NicClusterPolicySpec]()) {
		if field, env := strings.CutPrefix(path, "ofedDriver.env"); env && field != "" {
			continue
		}
		if !used[path] {
			t.Errorf("spec.%s counts as served, and has no effect", path)
		}
	}
}
