package snapshot_test

import (
	"bytes"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"gpufabric.io/drivers/doctor/snapshot"
)

func saved(t *testing.T) []byte {
	t.Helper()
	s := &snapshot.Snapshot{Server: snapshot.Server{URL: "https://10.1.2.3", Version: "v1.36.0"}}
	for _, name := range []string{"a", "b", "c"} {
		s.Nodes = append(s.Nodes, corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "node-" + name}})
		s.Events = append(s.Events, corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: "event-" + name, Namespace: "n"}})
	}
	var out bytes.Buffer
	if err := s.Save(&out, []snapshot.File{{Name: "logs/x.log", Content: []byte("a line\n")}}); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestAnArchiveIsReadAsItWasWritten(t *testing.T) {
	s, err := snapshot.Load(bytes.NewReader(saved(t)))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Nodes) != 3 || len(s.Events) != 3 || s.Server.Version != "v1.36.0" || s.Server.URL != "" || len(s.Unread) != 0 {
		t.Errorf("read %d nodes, %d events, server %+v, unread %v", len(s.Nodes), len(s.Events), s.Server, s.Unread)
	}
}

func TestAnArchiveThatWasCutAnywhereSaysWhatIsMissing(t *testing.T) {
	whole := saved(t)
	for length := range whole {
		s, err := snapshot.Load(bytes.NewReader(whole[:length]))
		if err != nil {
			continue // cut before the index
		}
		if len(s.Events) == 0 && s.Reads("events") {
			t.Fatalf("cut at %d of %d: the Events are gone and nothing says so", length, len(whole))
		}
	}
}

func TestWhatIsNoArchiveIsRefused(t *testing.T) {
	for _, text := range []string{"", "no archive", "\x1f\x8b"} {
		if _, err := snapshot.Load(strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), "no archive of gpufabric") {
			t.Errorf("%q: %v", text, err)
		}
	}
}
