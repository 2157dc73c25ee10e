package trace_test

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/fakes/trace"
)

const recorded = "1.5\t7\tdcgm\tnvmlDeviceGetName\t0\timplemented\n" +
	"1.6\t7\tdcgm\tnvmlDeviceGetName\t15\timplemented\n" +
	"1.7\t7\tdcgm\tnvmlDeviceGetFanSpeed\t3\tstub\n" +
	"1.8\t8\tplugin\tnvmlInit_v2\t0\timplemented\n" +
	"cut off\t8\tplu"

func TestSummaryListsStubsByProgram(t *testing.T) {
	calls, damaged, err := trace.Read(strings.NewReader(recorded))
	if err != nil || damaged != 1 || len(calls) != 4 {
		t.Fatal(len(calls), damaged, err)
	}
	want := []trace.Line{
		{Program: "dcgm", Function: "nvmlDeviceGetFanSpeed", Calls: 1, Results: map[int]int{3: 1}},
		{Program: "dcgm", Function: "nvmlDeviceGetName", Implemented: true, Calls: 2, Results: map[int]int{0: 1, 15: 1}},
		{Program: "plugin", Function: "nvmlInit_v2", Implemented: true, Calls: 1, Results: map[int]int{0: 1}},
	}
	lines := trace.Summarize(calls)
	if diff := cmp.Diff(want, lines); diff != "" {
		t.Error(diff)
	}
	var out bytes.Buffer
	if err := trace.Write(&out, lines, damaged); err != nil || !strings.Contains(out.String(), "STUB") ||
		!strings.Contains(out.String(), "1 lines could not be read") {
		t.Error(out.String(), err)
	}
}
