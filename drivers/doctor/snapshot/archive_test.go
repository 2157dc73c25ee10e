package snapshot_test

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"errors"
	"io"
	"runtime"
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

func TestArchiveIsReadAsItWasWritten(t *testing.T) {
	s, err := snapshot.Load(bytes.NewReader(saved(t)), 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(s.Nodes) != 3 || len(s.Events) != 3 || s.Server.Version != "v1.36.0" || s.Server.URL != "" || len(s.Unread) != 0 {
		t.Errorf("read %d nodes, %d events, server %+v, unread %v", len(s.Nodes), len(s.Events), s.Server, s.Unread)
	}
}

// TestSaveOmitsTheServersAddressWhereProgramsWroteIt: programs in the cluster have another address of it than the reader.
func TestSaveOmitsTheServersAddressWhereProgramsWroteIt(t *testing.T) {
	words := []string{
		`Get "https://10.96.0.1:443/apis/resource.k8s.io/v1/resourceslices": dial tcp 10.96.0.1:443: connect: connection refused`,
		`Patch "https://api.internal.example:6443/api/v1/nodes/a?x=1": read tcp 10.0.0.7:41234->203.0.113.9:6443: read: connection reset by peer`,
		`Post "https://[fd00::1]:6443/apis/a": dial tcp6 [fd00::1]:6443: i/o timeout`,
		`dial tcp: lookup api.internal.example on 10.96.0.10:53: no such host`,
		`tls: failed to verify certificate: x509: certificate is valid for 10.96.0.1, api.internal.example, not 203.0.113.9`,
		`the server 198.51.100.4 is not reachable; 198.51.100.40 is a node`,
	}
	s := &snapshot.Snapshot{Server: snapshot.Server{URL: "https://198.51.100.4:6443"}}
	for i, text := range words {
		s.Events = append(s.Events, corev1.Event{ObjectMeta: metav1.ObjectMeta{Name: string(rune('a' + i))}, Message: text})
	}
	s.Unread = []snapshot.Unread{{Kind: "pods", Message: words[0]}}
	s.Pods = []corev1.Pod{{Status: corev1.PodStatus{Message: words[1]}}}
	var out bytes.Buffer
	if err := s.Save(&out, []snapshot.File{{Name: "logs/x.log", Content: []byte(strings.Join(words, "\n"))}}); err != nil {
		t.Fatal(err)
	}
	packed, err := gzip.NewReader(bytes.NewReader(out.Bytes()))
	if err != nil {
		t.Fatal(err)
	}
	all, err := io.ReadAll(packed)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"10.96.0.1", "10.0.0.7", "203.0.113.9", "internal.example", "fd00::1", "198.51.100.4 "} {
		if bytes.Contains(all, []byte(address)) {
			t.Errorf("the archive has %s", address)
		}
	}
	read, err := snapshot.Load(bytes.NewReader(out.Bytes()), 0)
	if err != nil || len(read.Events) != len(words) {
		t.Fatalf("read %+v, %v", read, err)
	}
	if got, want := read.Events[0].Message, `Get "https://API-SERVER/apis/resource.k8s.io/v1/resourceslices": dial tcp API-SERVER: connect: `+
		`connection refused`; got != want {
		t.Errorf("the words are %q, want %q", got, want)
	}
	if got := read.Events[5].Message; !strings.Contains(got, "198.51.100.40 is a node") {
		t.Errorf("another address is changed: %q", got)
	}
}

func TestArchiveReportsTruncation(t *testing.T) {
	whole := saved(t)
	for length := range whole {
		s, err := snapshot.Load(bytes.NewReader(whole[:length]), 0)
		if err != nil {
			continue // cut before the index
		}
		if len(s.Events) == 0 && s.Reads("events") {
			t.Fatalf("cut at %d of %d: the Events are gone and nothing says so", length, len(whole))
		}
	}
}

func TestArchiveRejectsOtherFiles(t *testing.T) {
	for _, text := range []string{"", "no archive", "\x1f\x8b"} {
		if _, err := snapshot.Load(strings.NewReader(text), 0); err == nil || !strings.Contains(err.Error(), "not an archive of gpufabric") {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// TestLoadRefusesIndexThatBecomesMuchMore: each name of a kind becomes a message about what is missing.
func TestLoadRefusesIndexThatBecomesMuchMore(t *testing.T) {
	for name, index := range map[string]string{
		"kinds":  `{"format": "gpufabric.io/bundle/v1", "kinds": [` + strings.Repeat(`"",`, 1_000_000) + `""]}`,
		"unread": `{"format": "gpufabric.io/bundle/v1", "unread": [` + strings.Repeat(`{},`, 1_000_000) + `{}]}`,
	} {
		var out bytes.Buffer
		compressed := gzip.NewWriter(&out)
		archive := tar.NewWriter(compressed)
		if err := archive.WriteHeader(&tar.Header{Name: "bundle.json", Mode: 0o600, Size: int64(len(index))}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(archive, index); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(archive.Close(), compressed.Close()); err != nil {
			t.Fatal(err)
		}
		_, err := snapshot.Load(&out, 0)
		var tooLarge *snapshot.TooLargeError
		if !errors.As(err, &tooLarge) || tooLarge.File != "bundle.json" {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// bomb is an archive with one file of a kind.
func bomb(t *testing.T, kind string, content io.Reader, size int64) []byte {
	t.Helper()
	var out bytes.Buffer
	compressed := gzip.NewWriter(&out)
	archive := tar.NewWriter(compressed)
	index := `{"format": "gpufabric.io/bundle/v1", "kinds": ["` + kind + `"]}`
	for _, f := range []struct {
		name string
		size int64
		from io.Reader
	}{{"bundle.json", int64(len(index)), strings.NewReader(index)}, {kind + ".json", size, content}} {
		if err := archive.WriteHeader(&tar.Header{Name: f.name, Mode: 0o600, Size: f.size}); err != nil {
			t.Fatal(err)
		}
		if _, err := io.Copy(archive, f.from); err != nil {
			t.Fatal(err)
		}
	}
	if err := errors.Join(archive.Close(), compressed.Close()); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestLoadRefusesArchiveThatTakesTooMuchMemory(t *testing.T) {
	many := "[" + strings.Repeat("{},", 1_000_000) + "{}]"
	selector := "device" + strings.Repeat(".a", 4<<20)
	for name, c := range map[string]struct{ kind, content, want string }{
		"a million empty pods": {"pods", many, "more than 64 MiB of memory"},
		"a million containers": {"pods", `[{"spec": {"containers": ` + many + `}}]`, "an object has more than 50000 parts"},
		"half a million nulls": {"pods", `[{"spec": {"containers": [` + strings.Repeat("null,", 500_000) + `null]}}]`,
			"more than 50000 parts"},
		"an object of 8 MiB":      {"nodes", `[{"metadata": {"name": "` + strings.Repeat("a", 8<<20) + `"}}]`, "an object has more than 4 MiB"},
		"blanks before an object": {"nodes", "[" + strings.Repeat(" ", 8<<20) + "{}]", "an object has more than 4 MiB"},
		"half a million labels":   {"nodes", `[{"metadata": {"labels": {` + strings.Repeat(`"":"",`, 500_000) + `"":""}}}]`, "50000 parts"},
		"a selector of four million members": {"deviceclasses.resource.k8s.io",
			`[{"spec": {"selectors": [{"cel": {"expression": "` + selector + `"}}]}}]`, "more than 4 MiB"},
	} {
		t.Run(name, func(t *testing.T) {
			archive := bomb(t, c.kind, strings.NewReader(c.content), int64(len(c.content)))
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := snapshot.Load(bytes.NewReader(archive), 0)
			runtime.ReadMemStats(&after)
			var tooLarge *snapshot.TooLargeError
			if !errors.As(err, &tooLarge) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("an archive of %d bytes: %v, want %q", len(archive), err, c.want)
			}
			// The heap doubles between collections, and a list that grows is copied.
			if grown := int64(after.Sys) - int64(before.Sys); grown > 4*snapshot.MaxMemory {
				t.Errorf("the process grows by %d MiB", grown>>20)
			}
			t.Logf("attacker sees: %v", err)
		})
	}
}
