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
		{"pods that are replaced by the operator", "ofedDriver", "{image: a, upgradePolicy: {autoUpgrade: true}}", "not served: ofedDriver.upgradePolicy"},
		{"probes", "ofedDriver", "{startupProbe: {periodSeconds: 20}}", "not served: ofedDriver.startupProbe"},
		{"empty fields", "nvPeerDriver", "{imagePullSecrets: [], env: {}}", ""},
		{"an empty section", "global", "{}", ""},
		{"a section", "nvIpam", "{image: a}", "the section nvIpam is not served: known are devicePlugin, nvPeerDriver, ofedDriver, rdmaSharedDevicePlugin"},
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
