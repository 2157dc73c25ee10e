package annotation

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"

func TestFormatGPUs(t *testing.T) {
	got := FormatGPUs([]GPU{
		{UUID: uuid, Slots: 10, Memory: 4914, Model: "NVIDIA L40S", Healthy: true, Mode: ModeSoftware},
		{UUID: uuid, Slots: 7, Memory: 40960, Model: "NVIDIA A100-SXM4-40GB, odd:name", Healthy: false, Mode: ModeMIG},
	})
	want := uuid + ",10,4914,NVIDIA-L40S,true,hami-core:" + uuid + ",7,40960,NVIDIA-A100-SXM4-40GB  odd name,false,mig:"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

func TestParseShares(t *testing.T) {
	for name, test := range map[string]struct {
		value string
		want  [][]Share
	}{
		"nothing":                           {"", nil},
		"one share":                         {uuid + ",NVIDIA,1024,0:;", [][]Share{{{UUID: uuid, Memory: 1024}}}},
		"the last semicolon may be missing": {uuid + ",NVIDIA,1024,0:", [][]Share{{{UUID: uuid, Memory: 1024}}}},
		"a container in between has nothing": {uuid + ",NVIDIA,1,2:;;" + uuid + ",NVIDIA,3,4:;",
			[][]Share{{{UUID: uuid, Memory: 1, Cores: 2}}, nil, {{UUID: uuid, Memory: 3, Cores: 4}}}},
		"two GPUs for one container": {uuid + ",NVIDIA,1,2:" + uuid + ",NVIDIA,3,4:;",
			[][]Share{{{UUID: uuid, Memory: 1, Cores: 2}, {UUID: uuid, Memory: 3, Cores: 4}}}},
		"a MIG slot by its geometry's place": {uuid + "[1-3],NVIDIA,4864,14:;",
			[][]Share{{{UUID: uuid, Memory: 4864, Cores: 14, Slot: SlotAt(1, 3)}}}},
		// As Volcano writes it (mig.go of its scheduler, encodeMIGID); "group1" is a name in its shipped ConfigMap.
		"a MIG slot by its geometry's name": {uuid + "[group1-0],NVIDIA,3000,0:",
			[][]Share{{{UUID: uuid, Memory: 3000, Slot: &MIGSlot{"group1", 0}}}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseShares(test.value)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("shares (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseSharesRefusesWithTheWrongPartQuoted(t *testing.T) {
	for value, part := range map[string]string{
		"rubbish":                "1 fields",
		uuid + ",AMD,1,1:;":      `"AMD"`,
		uuid + ",NVIDIA,-1,1:;":  `memory "-1"`,
		uuid + ",NVIDIA,1e3,1:;": `memory "1e3"`,
		uuid + ",NVIDIA,1,101:;": `cores "101"`,
		uuid + ",NVIDIA,1,x:;":   `cores "x"`,
		// The sum of two of these would be negative, which fits everywhere.
		uuid + ",NVIDIA,9223372036854775807,1:" + uuid +
			",NVIDIA,9223372036854775807,1:;": `memory "9223372036854775807", where a whole number of units from 0 to 4294967296`,
		uuid + ",NVIDIA,99999999999999999999,1":                   "memory",
		uuid + "[1],NVIDIA,1,1:;":                                 "MIG slot",
		uuid + "[1-,NVIDIA,1,1:;":                                 "MIG slot",
		uuid + "[-1-1],NVIDIA,1,1:;":                              "MIG slot",
		uuid + "[a-b-1],NVIDIA,1,1:;":                             "MIG slot", // Volcano reads no such name either
		uuid + "[../x-1],NVIDIA,1,1:;":                            "MIG slot",
		uuid + "[" + strings.Repeat("g", 64) + "-1],NVIDIA,1,1:;": "MIG slot",
		"../../etc/passwd,NVIDIA,1,1:;":                           "not a GPU's UUID",
		"GPU-,NVIDIA,1,1:;":                                       "not a GPU's UUID",
		";;" + uuid + ",NVIDIA:;":                                 "container 2",
		strings.Repeat(uuid+",NVIDIA,1,1:", 65):                   "more than 64",
		strings.Repeat("a", 300<<10):                              "at most",
	} {
		if got, err := ParseShares(value); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("ParseShares(%.60q) = %v, %v; want an error with %q", value, got, err, part)
		}
	}
}

func TestSharesRoundTrip(t *testing.T) {
	want := [][]Share{{{UUID: uuid, Memory: 1024, Cores: 50}}, nil, {{UUID: uuid, Memory: 4864, Cores: 14, Slot: SlotAt(0, 6)},
		{UUID: uuid, Memory: 3000, Slot: &MIGSlot{"group1", 2}}}}
	got, err := ParseShares(FormatShares(want))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("shares (-want +got):\n%s", diff)
	}
}

func TestParseHandshake(t *testing.T) {
	for value, want := range map[string]Handshake{
		"":                                     HandshakeAbsent,
		FormatReport(time.Unix(1763000000, 0)): HandshakeReported,
		"Requesting_2026.11.21 02:20:00":       HandshakeRequested,
		"Deleted_2026.11.21 02:20:00":          HandshakeDeleted,
	} {
		if got, err := ParseHandshake(value); err != nil || got != want {
			t.Errorf("ParseHandshake(%q) = %v, %v; want %v", value, got, err, want)
		}
	}
	for _, value := range []string{"Deleted_yesterday", "Requesting_", "hello"} {
		if got, err := ParseHandshake(value); err == nil {
			t.Errorf("ParseHandshake(%q) = %v, want an error", value, got)
		}
	}
}

func FuzzParseShares(f *testing.F) {
	f.Add(uuid + "[1-3],NVIDIA,4864,14:;;")
	f.Add(uuid + "[group1-0],NVIDIA,3000,0:;")
	f.Fuzz(func(t *testing.T, value string) {
		shares, err := ParseShares(value)
		if err != nil {
			return
		}
		again, err := ParseShares(FormatShares(shares))
		if err != nil {
			t.Fatalf("what was written from %q cannot be read: %v", value, err)
		}
		if len(shares) > 0 && cmp.Diff(shares, again) != "" {
			t.Errorf("%q changed on its way:\n%s", value, cmp.Diff(shares, again))
		}
	})
}

func FuzzParseHandshake(f *testing.F) {
	for _, seed := range []string{"", "Requesting_2026.01.02 15:04:05", "Deleted_2026.01.02 15:04:05", "Reported 2026-01-02T15:04:05Z"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, value string) {
		if _, err := ParseHandshake(value); err != nil && len(err.Error()) > 1024 {
			t.Errorf("an annotation of %d bytes makes an error of %d", len(value), len(err.Error()))
		}
	})
}

func FuzzParseSlots(f *testing.F) {
	f.Add(FormatSlots(map[string][][]int64{uuid: {{4864, 4864}, {9856}}}))
	f.Fuzz(func(t *testing.T, value string) {
		slots, err := ParseSlots(value)
		if err != nil || len(slots) == 0 {
			return
		}
		again, err := ParseSlots(FormatSlots(slots))
		if err != nil || cmp.Diff(slots, again) != "" {
			t.Errorf("%q changed on its way (%v):\n%s", value, err, cmp.Diff(slots, again))
		}
	})
}

func FuzzParseGPUs(f *testing.F) {
	f.Add(uuid + ",10,4914,NVIDIA-L40S,true,hami-core:")
	f.Fuzz(func(t *testing.T, value string) {
		if _, err := ParseGPUs(value); err != nil && len(err.Error()) > 1024 {
			t.Errorf("an annotation of %d bytes makes an error of %d", len(value), len(err.Error()))
		}
	})
}
