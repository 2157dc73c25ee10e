package computedomain

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

const base = "/apis/resource.nvidia.com/v1beta1/namespaces/user/computedomains"

func TestClientFindsADomainByItsUID(t *testing.T) {
	type meta = metav1.TypeMeta
	kind := meta{APIVersion: "resource.nvidia.com/v1beta1", Kind: "ComputeDomain"}
	domain := v1beta1.ComputeDomain{TypeMeta: kind, ObjectMeta: metav1.ObjectMeta{Namespace: "user", Name: "d", UID: "u1"}}
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		requests++
		w.Header().Set("Content-Type", "application/json")
		var answer any = v1beta1.ComputeDomainList{TypeMeta: meta{APIVersion: kind.APIVersion, Kind: "ComputeDomainList"},
			Items: []v1beta1.ComputeDomain{domain}}
		switch r.URL.Path {
		case base:
		case base + "/d":
			answer = domain
		default:
			w.WriteHeader(http.StatusNotFound)
			answer = metav1.Status{TypeMeta: meta{APIVersion: "v1", Kind: "Status"}, Status: "Failure", Reason: metav1.StatusReasonNotFound,
				Code: http.StatusNotFound}
		}
		if err := json.NewEncoder(w).Encode(answer); err != nil {
			t.Error(err)
		}
	}))
	defer server.Close()
	client, err := NewClient(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		hint     string
		uid      types.UID
		found    bool
		requests int
	}{
		"a right hint costs one request":       {"d", "u1", true, 1},
		"no hint":                              {"", "u1", true, 1},
		"the hint of one that is gone":         {"old", "u1", true, 2},
		"a forged hint finds no other domain":  {"d", "u2", false, 2},
		"a UID that the namespace has not got": {"", "u2", false, 1},
	} {
		t.Run(name, func(t *testing.T) {
			requests = 0
			got, err := client.ByUID(t.Context(), "user", c.hint, c.uid)
			if err != nil || (got != nil) != c.found || requests != c.requests {
				t.Errorf("found %v with %d requests, %v", got, requests, err)
			}
		})
	}
}
