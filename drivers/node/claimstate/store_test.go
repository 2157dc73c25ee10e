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
	"gpufabric.io/drivers/node/store"
)

func sample() Record {
	return Record{
		UID: "u1", Namespace: "default", Name: "train", Phase: Prepared, BootID: "boot",
		Devices: []Device{{Requests: []string{"r/sub"}, Pool: "p", Device: "d", ShareID: "s", CDIDeviceIDs: []string{"v/c=n"}}},
		Data:    json.RawMessage(`{"channel":"x"}`),
	}
}

// encode and decode write and read a claim's file.
func encode(record Record) ([]byte, error) { return kind().Encode(record) }

func decode(data []byte) (Record, error) {
	k := kind()
	k.Check = func(_ string, r Record) error { return check(string(r.UID), r) } // whatever the file's name
	return k.Read("", data)
}

// file is a claim's file with a value of any form, in a version.
func file(t *testing.T, version int, body string) []byte {
	t.Helper()
	k := store.Format[json.RawMessage]{Name: kind().Name, Version: version}
	data, err := k.Encode(json.RawMessage(body))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func open(t *testing.T, dir string) (*Store, []Unreadable) {
	t.Helper()
	records, unreadable, err := Open(dir, atomicfile.Writer{})
	if err != nil {
		t.Fatal(err)
	}
	return records, unreadable
}

func TestStoreKeepsRecordAfterRestart(t *testing.T) {
	dir := t.TempDir()
	records, _ := open(t, dir)
	if err := records.Put(sample()); err != nil {
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

func TestStoreReadsFileWithUnknownField(t *testing.T) {
	record, err := decode(file(t, 1, `{"uid":"u1","namespace":"default","name":"train","phase":"Prepared","invented":{"later":true}}`))
	if err != nil || record.Name != "train" {
		t.Errorf("%+v, %v", record, err)
	}
}

func TestStoreKeepsRecordOfLaterVersion(t *testing.T) {
	dir := t.TempDir()
	content := file(t, kind().Version+1, `{"uid":"u9"}`)
	path := filepath.Join(dir, "u9.claim")
	if err := os.WriteFile(path, content, 0o600); err != nil {
		t.Fatal(err)
	}
	_, unreadable := open(t, dir)
	if len(unreadable) != 1 || !strings.Contains(unreadable[0].String(), "run the newer version again and move the file back") {
		t.Fatalf("unreadable %v", unreadable)
	}
	if kept, err := os.ReadFile(unreadable[0].MovedTo); err != nil || !bytes.Equal(kept, content) {
		t.Errorf("set aside as %q, %v", kept, err)
	}
}

func TestUnreadableFilesAreSetAsideAndTheRestIsRead(t *testing.T) {
	good, err := encode(sample())
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		content []byte
		says    string
	}{
		"an empty file":            {nil, "not one JSON object"},
		"a file cut short":         {good[:len(good)-10], "not one JSON object"},
		"a changed byte":           {bytes.Replace(good, []byte("train"), []byte("trais"), 1), "checksum"},
		"something else":           {[]byte("hello\nworld\n"), "not one JSON object"},
		"a version of the future":  {file(t, kind().Version+1, `{"uid":"bad"}`), "newer version"},
		"a version that is none":   {file(t, 0, `{"uid":"bad"}`), "version 0"},
		"a body that is no object": {file(t, 1, "[]"), "decode"},
		"a body without a UID":     {file(t, 1, "{}"), "no uid"},
		"another claim's content":  {good, "but the name of another claim"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			records, _ := open(t, dir)
			if err := records.Put(sample()); err != nil {
				t.Fatal(err)
			}
			for range 2 { // the second finds the name taken by the first
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
				if aside := again.SetAside(); len(aside) != 1 || aside[0] != "bad" {
					t.Errorf("claims set aside: %v", aside)
				}
			}
			if later, _ := open(t, dir); len(later.SetAside()) != 1 {
				t.Errorf("claims set aside after another start: %v", later.SetAside())
			}
		})
	}
}

func TestStoreRejectsAUIDWithAPath(t *testing.T) {
	records, _ := open(t, t.TempDir())
	for _, uid := range []string{"", "../x", "a/b", ".hidden"} {
		record := sample()
		record.UID = types.UID(uid)
		if err := records.Put(record); err == nil {
			t.Errorf("%q was taken", uid)
		}
	}
}

// FuzzDecode checks that no content makes a plugin panic, and that it reads back what it wrote.
func FuzzDecode(f *testing.F) {
	good, err := encode(sample())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(nil))
	f.Add([]byte(`{"kind":"gpufabric-claim","version":1}`))
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
