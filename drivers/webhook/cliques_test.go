package webhook

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	admissionv1 "k8s.io/api/admission/v1"
	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
)

const clique = "69a19a31-f41c-45a5-8245-579b6bce5bdd.32766"

// rack is a cluster of this many nodes in one clique, each with its channel; the nodes that are named are cordoned.
func rack(size int, cordoned ...int) *fake.Clientset {
	var objects []runtime.Object
	for i := range size {
		name := fmt.Sprintf("node-%02d", i)
		node := &corev1.Node{
			ObjectMeta: metav1.ObjectMeta{Name: name,
				Labels: map[string]string{"nvidia.com/gpu.clique": clique, "topology.kubernetes.io/rack": "3"}},
			Status: corev1.NodeStatus{Conditions: []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}}}
		for _, c := range cordoned {
			node.Spec.Unschedulable = node.Spec.Unschedulable || c == i
		}
		objects = append(objects, node, channelSlice(name, 1, ""))
	}
	return fake.NewClientset(objects...)
}

// channelSlice is a node's slice by the plugin of compute domains, with a taint if the fabric is not usable.
func channelSlice(node string, generation int64, taint string) *resourceapi.ResourceSlice {
	kind := "channel"
	device := resourceapi.Device{Name: "channel-0",
		Attributes: map[resourceapi.QualifiedName]resourceapi.DeviceAttribute{"type": {StringValue: &kind}}}
	if taint != "" {
		device.Taints = []resourceapi.DeviceTaint{{Key: "compute-domain.nvidia.com/fabric", Value: taint,
			Effect: resourceapi.DeviceTaintEffectNoSchedule}}
	}
	slice := &resourceapi.ResourceSlice{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%d", node, generation)}}
	slice.Spec = resourceapi.ResourceSliceSpec{Driver: "compute-domain.nvidia.com", NodeName: &node,
		Pool:    resourceapi.ResourcePool{Name: node + "-compute-domain", Generation: generation, ResourceSliceCount: 1},
		Devices: []resourceapi.Device{device}}
	return slice
}

func create(kind, object string) admission.Request {
	return admission.Request{AdmissionRequest: admissionv1.AdmissionRequest{UID: "u", Operation: admissionv1.Create,
		Kind:   metav1.GroupVersionKind{Group: "resource.nvidia.com", Version: "v1beta1", Kind: kind},
		Object: runtime.RawExtension{Raw: []byte(object)}}}
}

func TestReviewWarnsAboutDomainThatDoesNotFitAnyClique(t *testing.T) {
	warned := []string{"18 nodes do not fit rack 3 (NVLink clique " + clique + "): 16 of 18 healthy",
		"not healthy there: node-07 (cordoned), node-11 (cordoned)",
		"the domain waits until it has 18 nodes; all cliques together have 16 healthy now"}
	update := create("ComputeDomain", `{"spec":{"numNodes":18}}`)
	update.Operation = admissionv1.Update
	for _, c := range []struct {
		name    string
		request admission.Request
		want    []string
	}{
		{"too large now", create("ComputeDomain", `{"spec":{"numNodes":18}}`), warned},
		{"as large as can be", create("ComputeDomain", `{"spec":{"numNodes":16}}`), nil},
		{"waits for no node", create("ComputeDomain", `{"spec":{"numNodes":0}}`), nil},
		{"says no number", create("ComputeDomain", `{"spec":{}}`), nil},
		{"a number below none", create("ComputeDomain", `{"spec":{"numNodes":-5}}`), nil},
		{"a number that is too large", create("ComputeDomain", `{"spec":{"numNodes":1e300}}`), nil},
		{"a number that is none", create("ComputeDomain", `{"spec":{"numNodes":"18"}}`), nil},
		{"no object", create("ComputeDomain", `7`), nil},
		{"not even JSON", create("ComputeDomain", `{`), nil},
		{"another kind", create("ComputeDomainClique", `{"spec":{"numNodes":18}}`), nil},
		{"a change", update, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			answer := Reviewer{Cliques: NewCliques(rack(18, 7, 11))}.Handle(t.Context(), c.request)
			if !answer.Allowed {
				t.Errorf("refused: %v", answer.Result)
			}
			if diff := cmp.Diff(c.want, answer.Warnings); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCliquesTakeTheNewestSlicesOfAPool(t *testing.T) {
	client := rack(2)
	for _, slice := range []*resourceapi.ResourceSlice{channelSlice("node-00", 0, "Joining"), channelSlice("node-01", 7, "DriverTooOld")} {
		if _, err := client.ResourceV1().ResourceSlices().Create(t.Context(), slice, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	nodes, err := NewCliques(client).Nodes(t.Context())
	if err != nil || len(nodes) != 2 || nodes[0].Why != "" || nodes[1].Why != "DriverTooOld" {
		t.Errorf("%+v, %v", nodes, err)
	}
}

func TestReviewDoesNotWarnWithoutData(t *testing.T) {
	domain := create("ComputeDomain", `{"spec":{"numNodes":18}}`)
	for _, resource := range []string{"nodes", "resourceslices"} {
		t.Run(resource, func(t *testing.T) {
			client, asked := rack(2), 0
			client.PrependReactor("list", resource, func(clienttesting.Action) (bool, runtime.Object, error) {
				asked++
				return true, nil, errors.New("forbidden")
			})
			reviewer := Reviewer{Cliques: NewCliques(client)}
			for range 3 { // a failure is remembered too: it must not cost each domain a request
				if answer := reviewer.Handle(t.Context(), domain); !answer.Allowed || len(answer.Warnings) != 0 {
					t.Errorf("%+v", answer)
				}
			}
			if asked != 1 {
				t.Errorf("the API server was asked %d times", asked)
			}
		})
	}
	t.Run("nobody may ask", func(t *testing.T) {
		if answer := (Reviewer{}).Handle(t.Context(), domain); !answer.Allowed || len(answer.Warnings) != 0 {
			t.Errorf("%+v", answer)
		}
	})
	t.Run("another request waits for the answer, and its time is over", func(t *testing.T) {
		c := NewCliques(rack(2))
		c.turn <- struct{}{}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if answer := (Reviewer{Cliques: c}).Handle(ctx, domain); !answer.Allowed || len(answer.Warnings) != 0 {
			t.Errorf("%+v", answer)
		}
	})
}

func TestReviewReadsClusterOnceForManyDomains(t *testing.T) {
	client := rack(18)
	now := time.Now()
	c := NewCliques(client)
	c.now = func() time.Time { return now }
	look := func() {
		t.Helper()
		if nodes, err := c.Nodes(t.Context()); err != nil || len(nodes) != 18 {
			t.Fatalf("%d nodes, %v", len(nodes), err)
		}
	}
	look()
	now = now.Add(freshFor - 1)
	look()
	if n := len(client.Actions()); n != 2 {
		t.Errorf("%d requests", n)
	}
	now = now.Add(1)
	look()
	if n := len(client.Actions()); n != 4 {
		t.Errorf("%d requests after the first look was old", n)
	}
	for _, action := range client.Actions() {
		asked := action.(clienttesting.ListAction).GetListRestrictions()
		if labels, fields := asked.Labels.String(), asked.Fields.String(); labels != "nvidia.com/gpu.clique" &&
			fields != "spec.driver=compute-domain.nvidia.com" {
			t.Errorf("%s were listed by labels %q and fields %q", action.GetResource().Resource, labels, fields)
		}
	}
}
