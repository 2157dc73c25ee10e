package charts

import (
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

func scheduler(t *testing.T, values map[string]any) []Object {
	t.Helper()
	var own []Object
	for _, object := range renderValues(t, "gpufabric", values) {
		if strings.HasPrefix(object.GetName(), "gpufabric-scheduler") {
			own = append(own, object)
		}
	}
	return own
}

func TestChartOmitsSchedulerObjectsWhenDisabled(t *testing.T) {
	if own := scheduler(t, everything()); len(own) > 0 {
		t.Errorf("%d objects of the scheduler are rendered, %s first", len(own), own[0].GetName())
	}
}

// The tests of drivers/scheduler check with the program itself what the configuration does.
func TestSchedulerIsConfiguredByValues(t *testing.T) {
	values := map[string]any{"image": map[string]any{"tag": "v9"}, "scheduler": map[string]any{
		"enabled": true, "name": "shares", "nodePolicy": "spread", "cardPolicy": "numa", "weight": 7, "nodeLock": true,
		"featureGates": map[string]any{"GenericWorkload": true, "GangScheduling": true}, "port": 10300, "replicas": 2}}
	objects := scheduler(t, values)
	var configuration string
	for _, object := range objects {
		if object.GetKind() == "ConfigMap" {
			configuration, _, _ = unstructured.NestedString(object.Object, "data", "scheduler.yaml")
		}
	}
	for _, want := range []string{"schedulerName: shares\n", "nodePolicy: spread\n", "cardPolicy: numa\n", "weight: 7\n", "nodeLock: true\n",
		"resourceNamespace: gpufabric-system\n"} {
		if !strings.Contains(configuration+"\n", want) {
			t.Errorf("no %q in\n%s", want, configuration)
		}
	}
	container := pods(t, objects)["gpufabric-scheduler"].Spec.Containers[0]
	if container.Image != "ghcr.io/gpufabric/gpufabric-scheduler:v9" || !slices.Contains(container.Args, "--secure-port=10300") ||
		!slices.Contains(container.Args, "--feature-gates=GangScheduling=true,GenericWorkload=true") ||
		container.Ports[0].ContainerPort != 10300 {
		t.Errorf("it runs %s %v on %v", container.Image, container.Args, container.Ports)
	}
	values["scheduler"].(map[string]any)["nodePolicy"] = "binpack"
	before, after := pods(t, objects)["gpufabric-scheduler"], pods(t, scheduler(t, values))["gpufabric-scheduler"]
	if before.Annotations["checksum/configuration"] == after.Annotations["checksum/configuration"] {
		t.Error("another configuration does not restart it, and it reads its configuration at its start only")
	}
}
