package capability_test

import (
	"strings"
	"testing"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"gpufabric.io/build/apiserver"
	"gpufabric.io/drivers/node/capability"
)

// The version of an emulating server is 1.36.3, and its gates are those of the earlier version.
func TestMissingNamesEveryGateOfAServerThatEmulatesAnEarlierVersion(t *testing.T) {
	if testing.Short() {
		t.Skip("skipped with -short: it starts API servers")
	}
	for _, c := range []struct {
		emulated string
		want     capability.Missing
	}{
		{"1.34", capability.Missing{Taints: true, Counters: true, Shares: true}},
		{"1.35", capability.Missing{Taints: true, Counters: true, Shares: true}},
		{"1.36", capability.Missing{}},
	} {
		t.Run(c.emulated, func(t *testing.T) {
			s := apiserver.Start(t, apiserver.Emulating(c.emulated))
			client, err := kubernetes.NewForConfig(&rest.Config{Host: s.URL, BearerToken: apiserver.AdminToken,
				TLSClientConfig: rest.TLSClientConfig{CAData: s.CA}, QPS: -1})
			if err != nil {
				t.Fatal(err)
			}
			server := capability.Server{Client: client, Driver: "gpu.nvidia.com", Node: "n1", Pool: "n1-gpu"}
			got, err := server.Missing(t.Context())
			if err != nil || got != c.want {
				t.Errorf("missing %+v (error %v), want %+v", got, err, c.want)
			}
			if state, err := server.State(t.Context()); err != nil || c.want.Any() && !strings.HasSuffix(state.Version, "emulating "+c.emulated) {
				t.Errorf("state %+v, error %v", state, err)
			}
		})
	}
}
