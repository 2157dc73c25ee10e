package draplugin

import (
	"context"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/dynamic-resource-allocation/resourceslice"
)

// collect deletes the node's slices whose owner is not the Node, as the garbage collector does, and returns how many it deleted.
func collect(t *testing.T, client *fake.Clientset) (deleted int) {
	t.Helper()
	node, err := client.CoreV1().Nodes().Get(t.Context(), "node-a", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, slice := range slicesOf(t, client) {
		if slice.OwnerReferences[0].UID == node.UID {
			continue
		}
		if err := client.ResourceV1().ResourceSlices().Delete(t.Context(), slice.Name, metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		deleted++
	}
	return deleted
}

func slicesOf(t *testing.T, client *fake.Clientset) []resourceapi.ResourceSlice {
	t.Helper()
	list, err := client.ResourceV1().ResourceSlices().List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	return list.Items
}

// awaitSlices waits until the slices are as done wants them.
func awaitSlices(t *testing.T, client *fake.Clientset, what string, done func(all []resourceapi.ResourceSlice) bool) {
	t.Helper()
	changes, err := client.ResourceV1().ResourceSlices().Watch(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer changes.Stop()
	for late := time.After(time.Minute); !done(slicesOf(t, client)); {
		select {
		case <-changes.ResultChan():
		case <-late:
			t.Fatalf("not within a minute: %s; there are %+v", what, slicesOf(t, client))
		}
	}
}

// A Node is deleted and registers again under its name while the plugin runs. The library's delays are shortened.
func TestSlicesStayWhenTheirNodeRegistersAgain(t *testing.T) {
	for name, uid := range map[string]types.UID{"looked up": "", "given": "first"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			client := versioned()
			register := func(uid types.UID) {
				if err := client.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: uid}}); err != nil {
					t.Fatal(err)
				}
			}
			await := func(what string, done func(all []resourceapi.ResourceSlice) bool) {
				t.Helper()
				awaitSlices(t, client, what, done)
			}
			register("first")
			short := 50 * time.Millisecond
			s := &nodeSlices{driver: driver, node: "node-a", ctx: ctx, owner: uid, options: resourceslice.Options{KubeClient: client,
				SyncDelay: &short, MutationCacheTTL: &short}}
			if err := s.publish(oneDevice("d0")); err != nil {
				t.Fatal(err)
			}
			ended := make(chan struct{})
			go func() { defer close(ended); s.follow(ctx, short) }()
			defer func() { cancel(); <-ended; s.stop() }()
			await("a slice", func(all []resourceapi.ResourceSlice) bool { return len(all) == 1 })
			if err := client.CoreV1().Nodes().Delete(ctx, "node-a", metav1.DeleteOptions{}); err != nil {
				t.Fatal(err)
			}
			register("second")
			deleted := 0
			await("a slice that the garbage collector leaves", func(all []resourceapi.ResourceSlice) bool {
				deleted += collect(t, client)
				return len(all) == 1 && all[0].OwnerReferences[0].UID == "second"
			})
			t.Logf("attacker sees: %d slices deleted, then they stay", deleted)
			// Later changes reach the new owner's slices.
			if err := s.publish(oneDevice("d1")); err != nil {
				t.Fatal(err)
			}
			await("the next device", func(all []resourceapi.ResourceSlice) bool {
				return len(all) == 1 && all[0].Spec.Devices[0].Name == "d1" && all[0].OwnerReferences[0].UID == "second"
			})
		})
	}
}

// The garbage collector has not deleted the slice of the earlier Node yet. The library makes slices again after an hour here.
func TestCompareReplacesSlicesAtOnceWhenNodeRegisteredAgain(t *testing.T) {
	client, late := versioned(), time.Hour
	register := func(uid types.UID) {
		if err := client.Tracker().Add(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-a", UID: uid}}); err != nil {
			t.Fatal(err)
		}
	}
	register("first")
	s := &nodeSlices{driver: driver, node: "node-a", ctx: t.Context(), options: resourceslice.Options{KubeClient: client, SyncDelay: &late,
		MutationCacheTTL: &late}}
	if err := s.publish(oneDevice("d0")); err != nil {
		t.Fatal(err)
	}
	defer s.stop()
	await := func(owner types.UID) {
		t.Helper()
		awaitSlices(t, client, "a slice of Node "+string(owner), func(all []resourceapi.ResourceSlice) bool {
			return len(all) == 1 && all[0].OwnerReferences[0].UID == owner
		})
	}
	await("first")
	if err := client.CoreV1().Nodes().Delete(t.Context(), "node-a", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	register("second")
	s.made = -1 // a slice was made since the last look
	if err := s.compare(t.Context()); err != nil {
		t.Fatal(err)
	}
	await("second")
}
