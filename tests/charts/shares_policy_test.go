package charts

import (
	"context"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
)

// sharesStay tries to choose which shares of GPUs a pod has, in every way in which a pod's annotations are written.
func sharesStay(t *testing.T, live *server) {
	const (
		forged  = `{"metadata": {"annotations": {"volcano.sh/vgpu-ids-new": "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9,NVIDIA,0,0:;"}}}`
		other   = `{"metadata": {"annotations": {"a": "b"}}}`
		volcano = "system:serviceaccount:volcano-system:volcano-scheduler"
		words   = "may not write volcano.sh/vgpu-ids-new of a pod"
	)
	create := func(ctx context.Context, client dynamic.Interface) error {
		pod := object(`{"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "forged", "namespace": "default", "annotations":
			{"volcano.sh/vgpu-ids-new": "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9,NVIDIA,0,0:;"}}, "spec": {"containers": [{"name": "c", ` +
			`"image": "i"}]}}`)
		_, err := client.Resource(podResource).Namespace("default").Create(ctx, pod, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}})
		return err
	}
	bind := func(ctx context.Context, client dynamic.Interface) error {
		binding := object(`{"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "standing", "namespace": "default", "annotations":
			{"volcano.sh/vgpu-ids-new": "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9,NVIDIA,0,0:;"}}, "target": {"kind": "Node", "name": "node-a"}}`)
		_, err := client.Resource(podResource).Namespace("default").Create(ctx, binding, metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}},
			"binding")
		return err
	}
	as := func(user string) dynamic.Interface {
		config := rest.CopyConfig(live.config)
		config.Impersonate = rest.ImpersonationConfig{UserName: user, Groups: []string{"system:masters"}}
		client, err := dynamic.NewForConfig(config)
		if err != nil {
			t.Fatal(err)
		}
		return client
	}
	live.awaitPolicies(t, "anybody", func(ctx context.Context, _ dynamic.Interface) error { return create(ctx, live.client) })
	for name, test := range map[string]struct {
		user    string
		try     attempt
		refused bool
	}{
		"a tenant's pod with shares written on it":        {"anybody", create, true},
		"a tenant writes shares on a pod that is there":   {"anybody", patch(podResource, "default", "standing", forged), true},
		"a tenant writes them with the pod's status":      {"anybody", patch(podResource, "default", "standing", forged, "status"), true},
		"a tenant binds a pod with shares":                {"anybody", bind, true},
		"a tenant writes another annotation":              {"anybody", patch(podResource, "default", "standing", other), false},
		"Volcano's scheduler binds a pod with shares":     {volcano, bind, false},
		"Volcano's scheduler writes shares on a pod":      {volcano, patch(podResource, "default", "standing", forged), false},
		"gpufabric's scheduler binds a pod with shares":   {"system:serviceaccount:" + namespace + ":gpufabric-scheduler", bind, false},
		"a Volcano of another namespace, which is forged": {"system:serviceaccount:default:volcano-scheduler", bind, true},
	} {
		err := test.try(t.Context(), as(test.user))
		switch {
		case test.refused && (err == nil || !strings.Contains(err.Error(), words)):
			t.Errorf("%s: got %v, want an error with %q", name, err, words)
		case !test.refused && err != nil && strings.Contains(err.Error(), "may not write"):
			t.Errorf("%s: %v", name, err)
		}
	}
}
