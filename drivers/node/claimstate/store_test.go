package claimstate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
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

// encode, decode and header are a claim's file.
func encode(record Record) ([]byte, error) { return kind().Encode(record) }

func decode(data []byte) (Record, error) {
	k := kind()
	k.Check = func(_ string, r Record) error { return check(string(r.UID), r) } // whatever the file's name
	return k.Read("", data)
}

func header(version int, body []byte) string {
	return fmt.Sprintf("gpufabric-claim %d sha256:%x\n", version, sha256.Sum256(body))
}

func open(t *testing.T, dir string) (*Store, []Unreadable) {
	t.Helper()
	store, unreadable, err := Open(dir, atomicfile.Writer{})
	if err != nil {
		t.Fatal(err)
	}
	return store, unreadable
}

func TestAStoredRecordIsThereAfterARestart(t *testing.T) {
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

// ofVersion1 is a record as version 1 of the program wrote it, byte for byte.
const ofVersion1 = `gpufabric-claim 1 sha256:120de182e7adfbdc8d7bf75225e0bdb06a34c04fef5ef6da23ef5ee30735e069
{"uid":"u1","namespace":"default","name":"train","phase":"Prepared","bootID":"boot","devices":[{"requests":["r/sub"],"pool":"p",` +
	`"device":"d","shareID":"s","cdiDeviceIDs":["v/c=n"]}],"data":{"channel":"x"}}
`

// version1 reads a file by the rules of version 1, which must not change: three words, a version of 1, the bytes' checksum, known fields.
func version1(content []byte) (Record, error) {
	line, body, _ := bytes.Cut(content, []byte("\n"))
	words := strings.Split(string(line), " ")
	if len(words) != 3 || words[0] != "gpufabric-claim" {
		return Record{}, fmt.Errorf("header %q", line)
	}
	if words[1] != "1" {
		return Record{}, fmt.Errorf("version %s, known are 1 to 1", words[1])
	}
	if sum := sha256.Sum256(body); words[2] != "sha256:"+hex.EncodeToString(sum[:]) {
		return Record{}, fmt.Errorf("checksum %s", words[2])
	}
	var record Record
	err := json.Unmarshal(body, &record)
	return record, err
}

//shows:gpu-state
func TestAnUpgradeReadsWhatTheVersionBeforeWrote(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "u1.claim"), []byte(ofVersion1), 0o600); err != nil {
		t.Fatal(err)
	}
	store, unreadable := open(t, dir)
	if diff := cmp.Diff([]Record{sample()}, store.List()); diff != "" || len(unreadable) != 0 {
		t.Errorf("unreadable %v, records (-want +got)\n%s", unreadable, diff)
	}
}

//shows:gpu-state
func TestADowngradeReadsEveryRecordThatSaysNothingNew(t *testing.T) {
	said, newer := sample(), sample()
	newer.UID, newer.DataVersion = "u2", 1
	dir := t.TempDir()
	store, _ := open(t, dir)
	for _, record := range []Record{said, newer} {
		if err := store.Put(record); err != nil {
			t.Fatal(err)
		}
	}
	for _, c := range []struct {
		file, refused string
	}{{"u1.claim", ""}, {"u2.claim", "version 2"}} {
		content, err := os.ReadFile(filepath.Join(dir, c.file))
		if err != nil {
			t.Fatal(err)
		}
		record, err := version1(content)
		switch {
		case c.refused != "" && (err == nil || !strings.Contains(err.Error(), c.refused)):
			t.Errorf("%s: %+v, error %v; want it refused as %s", c.file, record, err, c.refused)
		case c.refused == "" && (err != nil || !cmp.Equal(record, said)):
			t.Errorf("%s: error %v (-want +got)\n%s", c.file, err, cmp.Diff(said, record))
		}
	}
	// After a restart both are there.
	again, unreadable := open(t, dir)
	if diff := cmp.Diff([]Record{said, newer}, again.List()); diff != "" || len(unreadable) != 0 {
		t.Errorf("unreadable %v, records (-want +got)\n%s", unreadable, diff)
	}
}

func TestARecordOfALaterVersionIsKeptForIt(t *testing.T) {
	dir := t.TempDir()
	body := []byte(`{"uid":"u9"}`)
	content := append([]byte(header(Version+1, body)), body...)
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
		"another claim's content":  {good, "but its name is another claim's"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			store, _ := open(t, dir)
			if err := store.Put(sample()); err != nil {
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

//attack:claim-uid A claim whose UID is a path leads the plugin out of its state directory
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

// FuzzDecode checks that no content makes a plugin panic, and that it reads back what it wrote.
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
