package annotation

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestSlotsAreReadAsTheyAreWritten(t *testing.T) {
	const uuid = "GPU-0a1b2c3d-4e5f-6071-8293-a4b5c6d7e8f9"
	slots := map[string][][]int64{uuid: {{4864, 4864}, {}, {9856, 4864}}}
	text := FormatSlots(slots)
	if want := `{"` + uuid + `":[[4864,4864],[],[9856,4864]]}`; text != want {
		t.Errorf("wrote %s, want %s", text, want)
	}
	got, err := ParseSlots(text)
	if diff := cmp.Diff(slots, got); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
	if none, err := ParseSlots(FormatSlots(nil)); none != nil || err != nil {
		t.Errorf("no slots are %v, %v", none, err)
	}
}

func TestMalformedSlotsAreRefused(t *testing.T) {
	for value, part := range map[string]string{
		`{`:              "mig-slots",
		`{"g":[["1g"]]}`: "mig-slots",
		`{"g":[[-1]]}`:   "a slot of -1 units",
		`{"g":[[1e30]]}`: "mig-slots",
		`{"g":[[5.5]]}`:  "mig-slots",
		`{"g":[` + strings.Repeat("[],", 64) + `[]]}`:   "65 groups",
		`{"g":[[` + strings.Repeat("1,", 64) + `1]]}`:   "65 slots in group 0",
		strings.Repeat(" ", maximumLength) + `{"g":[]}`: "bytes",
	} {
		if _, err := ParseSlots(value); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%.40q: error %v, want one with %q", value, err, part)
		}
	}
}
