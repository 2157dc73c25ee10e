package annotation

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// second is another GPU than uuid.
const second = "GPU-11111111-4e5f-6071-8293-a4b5c6d7e8f9"

func TestParseGPUs(t *testing.T) {
	for name, test := range map[string]struct {
		value string
		want  []GPU
	}{
		"nothing":              {"", nil},
		"one GPU":              {uuid + ",10,4914,NVIDIA-L40S,true,hami-core:", []GPU{{uuid, 10, 4914, "L40S", true, ModeSoftware}}},
		"an unhealthy MIG GPU": {uuid + ",7,40960,NVIDIA-A100-SXM4-40GB,false,mig:", []GPU{{uuid, 7, 40960, "A100-SXM4-40GB", false, ModeMIG}}},
		"a plugin that writes no mode": {uuid + ",10,4914,NVIDIA-L40S,true:" + second + ",2,1,NVIDIA-T4,true,:",
			[]GPU{{uuid, 10, 4914, "L40S", true, ModeSoftware}, {second, 2, 1, "T4", true, ModeSoftware}}},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseGPUs(test.value)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(test.want, got); diff != "" {
				t.Errorf("GPUs (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseGPUsRefusesWithTheWrongPartQuoted(t *testing.T) {
	var tooMany strings.Builder
	for i := range maximumShares + 1 {
		fmt.Fprintf(&tooMany, "GPU-%08d-4e5f-6071-8293-a4b5c6d7e8f9,1,1,X,true:", i)
	}
	for value, part := range map[string]string{
		"rubbish":                                     "1 fields",
		"../etc,10,1,NVIDIA-X,true,mig:":              "not a GPU's UUID",
		uuid + ",ten,1,NVIDIA-X,true,mig:":            `count "ten"`,
		uuid + ",10,-1,NVIDIA-X,true,mig:":            `memory "-1"`,
		uuid + ",10,4294967297,NVIDIA-X,true,mig:":    `memory "4294967297"`,
		uuid + ",10,1,NVIDIA-X,maybe,mig:":            `health "maybe"`,
		uuid + ",10,1,NVIDIA-X,true,mps:":             `mode "mps"`,
		strings.Repeat("a", maximumLength+1):          "at most",
		tooMany.String():                              "more than 64",
		uuid + ",1,1,X,true:" + uuid + ",1,1,X,true:": uuid + " is listed twice",
	} {
		if got, err := ParseGPUs(value); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("ParseGPUs(%.60q) = %v, %v; want an error with %q", value, got, err, part)
		}
	}
}
