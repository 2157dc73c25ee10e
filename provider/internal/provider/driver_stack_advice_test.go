package provider

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	resourcev1 "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/provider/internal/apiserver"
	"gpufabric.io/provider/internal/inventory"
)

// testUpgradeAdvice plans upgrades of a stack whose plugin runs on a node where a pod holds a channel.
func testUpgradeAdvice(t *testing.T, s *apiserver.Server) {
	c := newCore(t)
	config := func(values string) string { return stack(s, "advised", fmt.Sprintf("values = [%q]", values)) }
	c.run(config("{}"))

	s.ServeNodes(t, nil, func(string) string { return "" }, "advised-0")
	pods := s.Typed.CoreV1().Pods("advised-system")
	_, err := pods.Create(
		t.Context(),
		&corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "plugin", Labels: map[string]string{"app": "advised-plugin"}},
			Spec: corev1.PodSpec{
				NodeName:   "advised-0",
				Containers: []corev1.Container{{Name: "c", Image: "example.invalid/c"}},
			}},
		metav1.CreateOptions{},
	)
	must(t, err)
	const driver = inventory.ComputeDomainDriver
	node := "advised-0"
	slice, err := s.Typed.ResourceV1().ResourceSlices().Create(
		t.Context(),
		&resourcev1.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: "advised"}, Spec: resourcev1.ResourceSliceSpec{
			Driver: driver, NodeName: &node, Pool: resourcev1.ResourcePool{Name: "p", ResourceSliceCount: 1},
			Devices: []resourcev1.Device{{Name: "channel-0"}}}},
		metav1.CreateOptions{},
	)
	must(t, err)
	holdClaim(t, s) // of channel-0 in pool p, by pod default/trainer
	for _, test := range []struct {
		name, values string
		wants        []string
		none         bool
	}{
		{"no change disturbs nothing", "{}", nil, true},
		{"a value of the plugin restarts it on its nodes", "hardware: {driverRoot: /run/nvidia/driver}", []string{
			"Drivers will be restarted", "DaemonSet advised-system/advised-plugin on 1 nodes " +
				"(advised-0)", "the 1 pods that hold some keep them"}, false},
		{"a number of replicas restarts nothing", "controller: {replicas: 2}", nil, true},
		{"a component switched off names the pods that hold its devices", "computeDomains: {enabled: false}", []string{
			"Drivers will be removed", "1 pods hold devices of compute-domain.nvidia.com", "default/trainer"}, false},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.t = t
			_, warnings := c.planText(config(test.values))
			contains(t, warnings, test.wants...)
			if test.none && strings.Contains(warnings, "Drivers will be") {
				t.Errorf("want no warning:\n%s", warnings)
			}
		})
	}
	c.t = t
	zero := int64(0)
	must(t, pods.Delete(t.Context(), "plugin", metav1.DeleteOptions{GracePeriodSeconds: &zero}))
	must(t, s.Typed.ResourceV1().ResourceSlices().Delete(t.Context(), slice.Name, metav1.DeleteOptions{}))
	must(t, s.Typed.ResourceV1().ResourceClaims("default").Delete(t.Context(), "held", metav1.DeleteOptions{}))
	c.run(as(s))
}
