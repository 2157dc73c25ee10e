package object

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/dynamic/fake"
	clienttesting "k8s.io/client-go/testing"

	"gpufabric.io/provider/internal/feed"
)

var pod = feed.Key{Namespace: "default", Name: "p"}

var pods = schema.GroupVersionResource{Version: "v1", Resource: "pods"}

// A token without a known end expires in the middle of a wait: the request that finds out is rejected, and the next has a new one.
func TestWaitSurvivesRenewedTokenOnly(t *testing.T) {
	waits := map[string]func(context.Context, *fake.FakeDynamicClient) error{
		"alone": func(ctx context.Context, client *fake.FakeDynamicClient) error {
			_, err := feed.NewSet(client).Wait(ctx, feed.Scope{Resource: pods, Namespace: "default", Name: "p"}, pod, "", exists)
			return err
		},
		"shared": func(ctx context.Context, client *fake.FakeDynamicClient) error {
			_, err := feed.NewSet(client).Wait(ctx, feed.Scope{Resource: pods}, pod, "", exists)
			return err
		},
	}
	for name, wait := range waits {
		for _, test := range []struct {
			name       string
			rejections int
			lasting    bool
		}{{"renewed at once", 1, false}, {"accepted after a while", 20, false}, {"rejected for ever", 1 << 30, true}} {
			t.Run(name+"/"+test.name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					pod := &unstructured.Unstructured{
						Object: map[string]any{"apiVersion": "v1", "kind": "Pod", "metadata": map[string]any{"namespace": "default", "name": "p"}},
					}
					client := fake.NewSimpleDynamicClientWithCustomListKinds(
						runtime.NewScheme(),
						map[schema.GroupVersionResource]string{pods: "PodList"},
						pod,
					)
					left := test.rejections
					client.PrependReactor("list", "pods", func(clienttesting.Action) (bool, runtime.Object, error) {
						left--
						return left >= 0, nil, apierrors.NewUnauthorized("the token has expired")
					})
					watched := watch.NewRaceFreeFake()
					client.PrependWatchReactor("pods", clienttesting.DefaultWatchReactor(watched, nil))
					ctx, cancel := context.WithTimeout(t.Context(), 30*time.Minute)
					began := time.Now()
					err := wait(ctx, client)
					took := time.Since(began)
					cancel()
					if test.lasting && (!apierrors.IsUnauthorized(err) || took > time.Minute) || !test.lasting && err != nil {
						t.Errorf("ended after %v with %v", took, err)
					}
					time.Sleep(time.Hour) // the shared watch ends some time after its last waiter; the double's ends by this call
					watched.Stop()
				})
			})
		}
	}
}

func exists(obj *unstructured.Unstructured) (bool, error) { return obj != nil, nil }
