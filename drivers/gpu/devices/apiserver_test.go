package devices_test

import (
	"fmt"
	"strings"
	"testing"

	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/drivers/gpu/devices"
)

// TestAPIServerAcceptsEveryForm publishes GPUs to a real API server, which refuses a whole slice for one wrong device.
func TestAPIServerAcceptsEveryForm(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped with -short: it starts an API server")
	}
	s := apiserver.Start(t)
	client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL, BearerToken: apiserver.AdminToken,
		TLSClientConfig: rest.TLSClientConfig{CAData: s.CA}, QPS: -1})
	if err != nil {
		t.Fatal(err)
	}
	uneven, unknown := a100(1), a100(2)
	uneven.MemoryBytes += 12345
	unknown.MemoryBytes, unknown.MIG = 0, nil
	gpus := node(a100(0), uneven, unknown)
	ten := devices.Profile{Name: "ten", Share: devices.Share{Memory: 10 * gib, Cores: 25}, Split: 1}
	for _, text := range []string{"whole", "shareable", "shares_1", "shares_2", "shares_10000", "mig_1g.5gb", "mig_1g.5gb-me_3g.20gb",
		"profiles", "flexible"} {
		t.Run(text, func(t *testing.T) {
			pool := devices.NewPool(gpus, devices.Options{Forms: forms(t, text), Profiles: []devices.Profile{ten}})
			taints := map[string][]resourceapi.DeviceTaint{}
			for _, d := range pool.Devices() {
				taints[d.Name()] = []resourceapi.DeviceTaint{{Key: "gpufabric.io/drained", Effect: resourceapi.DeviceTaintEffectNoSchedule}}
			}
			layout := pool.Slices(taints)
			node := "n1"
			for i, slice := range layout {
				name := strings.ToLower(strings.NewReplacer("_", "-", ".", "-").Replace(fmt.Sprintf("%s-%d", text, i)))
				_, err := client.ResourceV1().ResourceSlices().Create(t.Context(), &resourceapi.ResourceSlice{
					ObjectMeta: metav1.ObjectMeta{Name: name},
					Spec: resourceapi.ResourceSliceSpec{Driver: devices.Driver, NodeName: &node, Devices: slice.Devices,
						SharedCounters: slice.SharedCounters,
						Pool:           resourceapi.ResourcePool{Name: devices.PoolName(node), ResourceSliceCount: int64(len(layout))}},
				}, metav1.CreateOptions{})
				if err != nil {
					t.Errorf("slice %d: %v", i, err)
				}
			}
		})
	}
}
