package preflight

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
)

func TestReadRefusesPathsThatChartRefuses(t *testing.T) {
	for _, c := range []struct{ values, want string }{
		{`hardware: {driverDirectories: ["/"]}`, `hardware.driverDirectories[0]: "/"`},
		{`hardware: {driverDirectories: [/usr, /usr/..]}`, `hardware.driverDirectories[1]: "/usr/.."`},
		{`hardware: {hostMounts: [/etc/../root]}`, `hardware.hostMounts[0]: "/etc/../root"`},
		{`hardware: {driverRoot: /run/./nvidia}`, `hardware.driverRoot`}, {`hardware: {devRoot: dev}`, `hardware.devRoot: "dev"`},
		{`hardware: {driverContainerRoot: /run/nvidia/}`, `hardware.driverContainerRoot`},
		{`hardware: {driverContainerRoot: "", driverRoot: /opt/..nvidia/.driver, hostMounts: [/var/lib/a.b]}`, ""},
	} {
		_, err := Read([]byte(c.values))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.values, err, c.want)
		}
		t.Logf("attacker sees: %v", err)
	}
}

func TestPatternsAreThoseOfChartsSchema(t *testing.T) {
	text, err := os.ReadFile("../../../charts/gpufabric/values.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	type pattern struct {
		Pattern string `json:"pattern"`
	}
	var schema struct {
		Definitions map[string]pattern `json:"definitions"`
	}
	if err := json.Unmarshal(text, &schema); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string][2]string{
		"absolutePath":     {schema.Definitions["absolutePath"].Pattern, absolutePath},
		"directoryOnNode":  {schema.Definitions["directoryOnNode"].Pattern, directoryOnNode},
		"directoryOrEmpty": {schema.Definitions["directoryOrEmpty"].Pattern, optionalDirectory},
	} {
		if c[0] != c[1] {
			t.Errorf("%s: the chart has %s, and the preflight %s", name, c[0], c[1])
		}
	}
}
