package plugin

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/record"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/limiter"
	"gpufabric.io/drivers/gpu/limiter/account"
	"gpufabric.io/drivers/gpu/limiter/unlimited"
	"gpufabric.io/drivers/node/claimstate"
)

// A pod has a container with a claim's share whose library does not run, and one that may see every GPU without a share.
func TestContainerOfAClaimThatIsNotLimitedGetsAnEventAndItsPodFailsWhenClosed(t *testing.T) {
	const gpu = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	for name, test := range map[string]struct {
		closed, opened bool
		mounted        []string
		events         int
	}{
		"open":                          {mounted: []string{"claim_0"}, events: 1},
		"closed":                        {mounted: []string{"claim_0"}, closed: true, events: 2},
		"the library counts":            {mounted: []string{"claim_0"}, opened: true},
		"a container without a share":   {closed: true},
		"two shares of the GPU":         {mounted: []string{"claim_0", "other_0"}, closed: true},
		"two shares, of different GPUs": {mounted: []string{"claim_0", "other_1"}, events: 1},
	} {
		t.Run(name, func(t *testing.T) {
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "train", UID: "uid-train"}}
			client, events := fake.NewClientset(pod), record.NewFakeRecorder(10)
			id := strings.Repeat("a", 64)
			u := unlimitedShares{proc: t.TempDir(), accounts: t.TempDir(), client: client, events: events, closed: test.closed,
				shares: func() []claims.Share {
					return []claims.Share{{Name: "claim_0", Claim: "claim", GPU: gpu}, {Name: "other_0", Claim: "other", GPU: gpu},
						{Name: "other_1", Claim: "other", GPU: "GPU-1"}}
				},
				records: func() []claimstate.Record {
					return []claimstate.Record{{UID: "claim", Namespace: "default", Name: "share", Pods: []claimstate.Pod{{UID: pod.UID, Name: "train"}}}}
				}}
			if err := account.Make(filepath.Join(u.accounts, "claim_0"), false); err != nil {
				t.Fatal(err)
			}
			if test.opened {
				magic := []byte{0x32, 0x6d, 0x6c, 0x62, 0x61, 0x66, 0x70, 0x67} // ledger.h
				file, err := os.OpenFile(filepath.Join(u.accounts, "claim_0", account.Name), os.O_WRONLY, 0)
				if err == nil {
					_, err = file.WriteAt(magic, 0)
					err = errors.Join(err, file.Close())
				}
				if err != nil {
					t.Fatal(err)
				}
			}
			var mounts strings.Builder
			mounts.WriteString("21 20 0:5 / / rw,relatime - overlay overlay rw\n")
			for _, share := range test.mounted {
				fmt.Fprintf(&mounts, "22 21 8:1 /var/lib/x %s ro,nosuid - ext4 /dev/sda1 rw\n", filepath.Join(limiter.Directory, share))
			}
			process := filepath.Join(u.proc, "4242")
			if err := errors.Join(os.Mkdir(process, 0o700),
				os.WriteFile(filepath.Join(process, "cgroup"), []byte("0::/kubepods/poduid-train/"+id+"\n"), 0o600),
				os.WriteFile(filepath.Join(process, "mountinfo"), []byte(mounts.String()), 0o600)); err != nil {
				t.Fatal(err)
			}
			w := u.watch()
			w.GPUs = func() []unlimited.GPU {
				return []unlimited.GPU{{UUID: gpu, Processes: func() ([]uint32, error) { return []uint32{4242}, nil }}}
			}
			for range 3 {
				w.Look(t.Context())
			}
			if len(events.Events) != test.events {
				t.Fatalf("%d Events, want %d", len(events.Events), test.events)
			}
			if test.events > 0 {
				if text := <-events.Events; !strings.Contains(text, "ShareNotLimited process 4242 of container aaaaaaaaaaaaa uses GPU "+gpu) {
					t.Error(text)
				}
			}
			after, err := client.CoreV1().Pods("default").Get(t.Context(), "train", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if failed := after.Status.Phase == corev1.PodFailed; failed != (test.events == 2) {
				t.Errorf("status %+v", after.Status)
			}
		})
	}
}
