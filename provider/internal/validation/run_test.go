package validation

import (
	"errors"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	dynamicfake "k8s.io/client-go/dynamic/fake"

	"gpufabric.io/provider/internal/cluster"
	"gpufabric.io/provider/internal/domain"
	"gpufabric.io/provider/internal/object"
)

func TestCheckKeepsForeignObjects(t *testing.T) {
	c := Check{Test: Ping, Namespace: "team", Name: "train", Nodes: 2}
	for _, kind := range []object.Kind{domain.Kind, c.job()} {
		t.Run(kind.Name, func(t *testing.T) {
			theirs := &unstructured.Unstructured{Object: map[string]any{}}
			theirs.SetAPIVersion(kind.APIVersion())
			theirs.SetKind(kind.Name)
			theirs.SetNamespace(c.Namespace)
			theirs.SetName(c.Name)
			dyn := dynamicfake.NewSimpleDynamicClient(runtime.NewScheme(), theirs)
			client := &cluster.Client{Dynamic: dyn}
			_, err := Run(t.Context(), client, c, func(string) {})
			taken := &TakenError{}
			if !errors.As(err, &taken) || !strings.Contains(err.Error(), kind.Name+" team/train") {
				t.Errorf("got %v, want the %s that is there already named", err, kind.Name)
			}
			if err := Remove(t.Context(), client, c); err == nil {
				t.Error("removing what the check did not make is no error")
			}
			for _, action := range dyn.Actions() {
				if verb := action.GetVerb(); verb != "get" {
					t.Errorf("%s %s", verb, action.GetResource().Resource)
				}
			}
		})
	}
}
