package policy

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/yaml"

	mellanox "gpufabric.io/drivers/api/mellanox/v1alpha1"
)

//shows:rdma-policy
func TestWhatAPolicyAsksForAndDoesNotGetIsNamed(t *testing.T) {
	for _, test := range []struct{ name, section, content, want string }{
		{"all of it is served", "ofedDriver", "{image: a, repository: b, version: c}", ""},
		{"pods that are replaced by hand", "ofedDriver", "{image: a, upgradePolicy: {autoUpgrade: false, drain: {enable: true}}}", ""},
		{"pods that are replaced by the controller", "ofedDriver", "{image: a, upgradePolicy: {autoUpgrade: true, maxParallelUpgrades: 3}}", ""},
		{"pods that are replaced without a drain", "ofedDriver", "{image: a, upgradePolicy: {autoUpgrade: true, drain: {enable: false}}}", ""},
		{
			"nodes that are drained before", "ofedDriver",
			"{upgradePolicy: {autoUpgrade: true, drain: {force: true}, safeLoad: true, waitForCompletion: {podSelector: a=b}}}",
			"upgradePolicy.drain, upgradePolicy.safeLoad, upgradePolicy.waitForCompletion is not served, so pods of the driver are not replaced " +
				"by themselves: " +
				"drain each node and delete its pod, or leave that out",
		},
		{"probes", "ofedDriver", "{startupProbe: {periodSeconds: 20}}", ""},
		{"what no release has", "ofedDriver", "{paint: wet}", "not served: ofedDriver.paint"},
		{"a flag that is off", "rdmaSharedDevicePlugin", "{useCdi: false}", ""},
		{"a flag that is on", "rdmaSharedDevicePlugin", "{useCdi: true}", "not served: rdmaSharedDevicePlugin.useCdi"},
		{"tolerations, which the drivers have anyway", "tolerations", "[{operator: Exists}]", ""},
		{"empty fields", "nvPeerDriver", "{imagePullSecrets: [], env: {}}", ""},
		{"an empty section", "global", "{}", ""},
		{"a section", "nvIpam", "{image: a}", "the section nvIpam is not served: known are devicePlugin, global, nvPeerDriver, ofedDriver, " +
			"rdmaSharedDevicePlugin"},
	} {
		t.Run(test.name, func(t *testing.T) {
			var section any
			if err := yaml.Unmarshal([]byte(test.content), &section); err != nil {
				t.Fatal(err)
			}
			if got := unserved(test.section, section); got != test.want {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

// TestAPolicyIsNeverReadyWhileAnUpgradeWantsWhatIsNotServed has every other section ready.
//
//shows:rdma-policy
func TestAPolicyIsNeverReadyWhileAnUpgradeWantsWhatIsNotServed(t *testing.T) {
	ready := section{AppliedState: mellanox.AppliedState{Name: sectionOFED, State: mellanox.StateReady}}
	for asked, want := range map[string]mellanox.State{
		"drain: {enable: true}": mellanox.StateNotReady,
		"drain: {}":             mellanox.StateNotReady,
		"safeLoad: true":        mellanox.StateNotReady,
		"waitForCompletion: {podSelector: app=a}": mellanox.StateNotReady,
		"maxParallelUpgrades: 2":                  mellanox.StateReady,
		"drain: {enable: false}":                  mellanox.StateReady,
		"waitForCompletion: {timeoutSeconds: 0}":  mellanox.StateReady,
	} {
		t.Run(asked, func(t *testing.T) {
			object := &unstructured.Unstructured{}
			text := "{apiVersion: mellanox.com/v1alpha1, kind: NicClusterPolicy, metadata: {name: nic-cluster-policy}, " +
				"spec: {ofedDriver: {image: a, repository: b, version: c, upgradePolicy: {autoUpgrade: true, " + asked + "}}}}"
			if err := yaml.Unmarshal([]byte(text), &object.Object); err != nil {
				t.Fatal(err)
			}
			r := reconciler{client: fake.NewClientBuilder().WithObjects(object).Build()}
			p := &mellanox.NicClusterPolicy{ObjectMeta: metav1.ObjectMeta{Name: "nic-cluster-policy"}}
			unknown, err := r.unknownSections(t.Context(), p)
			if err != nil {
				t.Fatal(err)
			}
			status := summarise(p, append([]section{ready}, unknown...))
			field, _, _ := strings.Cut(asked, ":")
			if status.State != want || want == mellanox.StateNotReady && !strings.Contains(status.Reason, "upgradePolicy."+field) {
				t.Errorf("the policy is %s (%s), want %s", status.State, status.Reason, want)
			}
		})
	}
}
