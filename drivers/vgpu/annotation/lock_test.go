package annotation

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

func TestLockBelongsToItsPod(t *testing.T) {
	const bound = "1763777700" // 2025-11-22T02:15:00Z
	for _, test := range []struct {
		name, lock, bindTime string
		want                 bool
	}{
		{"of the same second", "2025-11-22T02:15:00Z", bound, true},
		{"with parts of that second", "2025-11-22T02:15:00.987654321Z", bound, true},
		{"of a moment before", "2025-11-22T02:14:57Z", bound, true},
		{"in another time zone", "2025-11-22T10:14:59+08:00", bound, true},
		{"of a pod that came later", "2025-11-22T02:15:01Z", bound, false},
		{"of a scheduler that locked long before", "2025-11-22T02:13:00Z", bound, false},
		{"the pod's by name", "2025-11-22T02:00:00Z,default,train", bound, true},
		{"of the next pod of its name", "2025-11-22T02:15:01Z,default,train", bound, false},
		{"by name, of a scheduler that writes no bind time", "2025-11-22T02:15:01Z,default,train", "", true},
		{"another pod's by name", "2025-11-22T02:15:00Z,default,other", bound, false},
		{"of a pod whose scheduler writes no time", "2025-11-22T02:15:00Z", "", false},
		{"no time", "rubbish", bound, false},
		{"none", "", bound, false},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train",
			Annotations: map[string]string{BindTime: test.bindTime}}}
		if got := Locks(test.lock, pod); got != test.want {
			t.Errorf("%s (%q): %t, want %t", test.name, test.lock, got, test.want)
		}
	}
}
