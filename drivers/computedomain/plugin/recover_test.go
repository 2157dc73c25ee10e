package plugin

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/node/claimstate"
)

func TestDirectoriesOfDomainsThatAreGoneAreRemovedAtTheStart(t *testing.T) {
	k := &preparer{stateDir: t.TempDir()}
	for _, name := range []string{"kept", "gone"} {
		writeFile(t, filepath.Join(k.domainsDir(), name, "nodes.cfg"), "")
		writeFile(t, filepath.Join(k.privateDirs(), name, "persist/persist.dat"), "")
	}
	if err := k.Recover(t.Context(), []claimstate.Record{{Data: json.RawMessage(fmt.Sprintf(`{"daemon":%q}`, "kept"))}}, nil); err != nil {
		t.Fatal(err)
	}
	for _, parent := range []string{k.domainsDir(), k.privateDirs()} {
		entries, err := os.ReadDir(parent)
		if err != nil || len(entries) != 1 || entries[0].Name() != "kept" {
			t.Errorf("left %v, %v", entries, err)
		}
	}
}

func TestDirectoriesStayWhereARecordCannotBeRead(t *testing.T) {
	for name, record := range map[string]claimstate.Record{
		"of another type": {Data: json.RawMessage(`{"daemon":["d"]}`)},
		"of no JSON":      {Data: json.RawMessage(`{"daemon":`)},
	} {
		t.Run(name, func(t *testing.T) {
			k := &preparer{stateDir: t.TempDir()}
			writeFile(t, filepath.Join(k.domainsDir(), "d", "nodes.cfg"), "")
			if err := k.Recover(t.Context(), []claimstate.Record{record}, nil); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Stat(filepath.Join(k.domainsDir(), "d", "nodes.cfg")); err != nil {
				t.Errorf("a running daemon's files: %v", err)
			}
			if err := k.Unprepare(t.Context(), record); err == nil {
				t.Error("what could not be read was unprepared")
			}
		})
	}
}

func TestDirectoriesStayWhereARecordWasSetAside(t *testing.T) {
	k := &preparer{stateDir: t.TempDir()}
	writeFile(t, filepath.Join(k.domainsDir(), "d", "nodes.cfg"), "")
	if err := k.Recover(t.Context(), nil, []types.UID{"u1"}); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(k.domainsDir(), "d", "nodes.cfg")); err != nil {
		t.Errorf("a running daemon's files: %v", err)
	}
}
