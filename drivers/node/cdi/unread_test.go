package cdi

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	cdilib "tags.cncf.io/container-device-interface/pkg/cdi"
	specs "tags.cncf.io/container-device-interface/specs-go"
)

func TestReadReportsSpecOnceRuntimeHasReadIt(t *testing.T) {
	root := filepath.Join(t.TempDir(), "cdi")
	dir := open(t, root)
	unread := func(before time.Time) []types.UID {
		t.Helper()
		claims, err := dir.Unread(before)
		if err != nil {
			t.Skip(err) // noatime
		}
		slices.Sort(claims)
		return claims
	}
	later := time.Now().Add(time.Minute)
	for _, claim := range []types.UID{"u1", "u2"} {
		if err := dir.Write(claim, []Device{{Name: "gpu", Edits: specs.ContainerEdits{Env: []string{"A=b"}}}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := unread(later); !slices.Equal(got, []types.UID{"u1", "u2"}) {
		t.Errorf("after two writes %v are unread, want both", got)
	}
	if got := unread(time.Now().Add(-time.Minute)); len(got) != 0 {
		t.Errorf("%v were written just now, and are called unread since a minute", got)
	}
	// A stat of a spec does not count as reading it: the plugin does that itself.
	if _, err := os.Stat(dir.Path("u1")); err != nil || !dir.Has("u1") {
		t.Fatal(err)
	}
	if got := unread(later); len(got) != 2 {
		t.Errorf("after a stat %v are unread, want both", got)
	}
	if _, err := cdilib.NewCache(cdilib.WithSpecDirs(root), cdilib.WithAutoRefresh(false)); err != nil {
		t.Fatal(err)
	}
	if got := unread(later); len(got) != 0 {
		t.Errorf("a runtime's library has read all, and %v are unread", got)
	}
	// New content makes a new spec.
	if err := dir.Write("u1", []Device{{Name: "gpu", Edits: specs.ContainerEdits{Env: []string{"A=c"}}}}); err != nil {
		t.Fatal(err)
	}
	if got := unread(later); !slices.Equal(got, []types.UID{"u1"}) {
		t.Errorf("after a spec was replaced %v are unread, want u1", got)
	}
}
