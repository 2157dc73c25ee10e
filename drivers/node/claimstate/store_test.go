package claimstate

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/node/atomicfile"
)

func sample() Record {
	return Record{
		UID: "u1", Namespace: "default", Name: "train", Phase: Prepared, BootID: "boot",
		Devices: []Device{{Requests: []string{"r/sub"}, Pool: "p", Device: "d", ShareID: "s", CDIDeviceIDs: []string{"v/c=n"}}},
		Data:    json.RawMessage(`{"channel":"x"}`),
	}
}

func open(t *testing.T, dir string) (*Store, []Unreadable) {
	t.Helper()
	store, unreadable, err := Open(dir, atomicfile.Writer{})
	if err != nil {
		t.Fatal(err)
	}
	return store, unreadable
}

func TestWhatIsPutIsThereAfterARestart(t *testing.T) {
	dir := t.TempDir()
	store, _ := open(t, dir)
	if err := store.Put(sample()); err != nil {
		t.Fatal(err)
	}
	again, unreadable := open(t, dir)
	if diff := cmp.Diff([]Record{sample()}, again.List()); diff != "" || len(unreadable) != 0 {
		t.Errorf("unreadable %v, records (-want +got)\n%s", unreadable, diff)
	}
	if err := again.Delete("u1"); err != nil {
		t.Fatal(err)
	}
	if err := again.Delete("u1"); err != nil {
		t.Errorf("deleting twice: %v", err)
	}
	if last, _ := open(t, dir); last.Len() != 0 {
		t.Error("the deleted claim is back")
	}
}

func TestAFieldOfALaterProgramDoesNotMakeAFileUnreadable(t *testing.T) {
	body := []byte(`{"uid":"u1","namespace":"default","name":"train","phase":"Prepared","invented":{"later":true}}` + "\n")
	record, err := decode(append([]byte(header(Version, body)), body...))
	if err != nil || record.Name != "train" {
		t.Errorf("%+v, %v", record, err)
	}
}

func TestUnreadableFilesAreSetAsideAndTheRestIsRead(t *testing.T) {
	good, err := encode(sample())
	if err != nil {
		t.Fatal(err)
	}
	newer := []byte(`{"uid":"bad"}`)
	for name, c := range map[string]struct {
		content []byte
		says    string
	}{
		"an empty file":            {nil, "no header line"},
		"a file cut short":         {good[:len(good)-10], "checksum"},
		"a changed byte":           {bytes.Replace(good, []byte("train"), []byte("trais"), 1), "checksum"},
		"something else":           {[]byte("hello\nworld\n"), "header"},
		"a version of the future":  {append([]byte(header(Version+1, newer)), newer...), "newer version"},
		"a version that is none":   {[]byte("gpufabric-claim x sha256:00\n{}"), "version"},
		"a body that is no object": {append([]byte(header(1, []byte("[]"))), "[]"...), "decode"},
		"a body without a UID":     {append([]byte(header(1, []byte("{}"))), "{}"...), "no uid"},
		"another claim's content":  {good, "its name says otherwise"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			store, _ := open(t, dir)
			if err := store.Put(sample()); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second finds the first's place taken
				if err := os.WriteFile(filepath.Join(dir, "bad.claim"), c.content, 0o600); err != nil {
					t.Fatal(err)
				}
				again, unreadable := open(t, dir)
				if len(unreadable) != 1 || !strings.Contains(unreadable[0].String(), c.says) {
					t.Fatalf("unreadable %v, want one that says %q", unreadable, c.says)
				}
				if kept, err := os.ReadFile(unreadable[0].MovedTo); err != nil || !bytes.Equal(kept, c.content) {
					t.Errorf("set aside as %q, %v", kept, err)
				}
				if again.Len() != 1 {
					t.Errorf("%d claims were read", again.Len())
				}
			}
		})
	}
}

func TestAUIDThatIsNoFileNameIsRefused(t *testing.T) {
	store, _ := open(t, t.TempDir())
	for _, uid := range []string{"", "../x", "a/b", ".hidden"} {
		record := sample()
		record.UID = types.UID(uid)
		if err := store.Put(record); err == nil {
			t.Errorf("%q was taken", uid)
		}
	}
}

// FuzzDecode holds that no content makes a plugin fall over, and that what is read is what was written.
func FuzzDecode(f *testing.F) {
	good, err := encode(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(nil))
	f.Add([]byte("gpufabric-claim 1 sha256:\n"))
	for i := range 4 {
		f.Add(good[:i*len(good)/4])
	}
	f.Fuzz(func(t *testing.T, content []byte) {
		record, err := decode(content)
		if err != nil {
			return
		}
		again, err := encode(record)
		if err != nil {
			t.Fatalf("what was read cannot be written: %v", err)
		}
		back, err := decode(again)
		if err != nil || fmt.Sprintf("%+v", back.Devices) != fmt.Sprintf("%+v", record.Devices) || back.UID != record.UID {
			t.Fatalf("%+v came back as %+v, %v", record, back, err)
		}
	})
}
