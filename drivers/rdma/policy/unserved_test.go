package policy

import (
	"testing"

	"sigs.k8s.io/yaml"
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
