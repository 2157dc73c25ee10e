package torture_test

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"gpufabric.io/drivers/program"
	"gpufabric.io/drivers/program/node"
	"gpufabric.io/fakes/nvmlstate"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
	"gpufabric.io/tests/simcluster/torture"
)

// asPlugin makes this test binary the plugin instead of running tests: gpufabric, with NVML in Go.
const asPlugin = "TORTURE_TEST_AS_PLUGIN"

func TestMain(m *testing.M) {
	if os.Getenv(asPlugin) == "" {
		os.Exit(m.Run())
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	host := program.Host{NVML: func(driverRoot string) nvml.Interface {
		return nvmlstate.New(filepath.Dir(driverRoot), nvmlstate.ReadOnlyDev)
	}}
	err := node.Program().Run(ctx, host, os.Args[1:]...)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	os.Exit(0)
}

// render renders a node of eight GPUs, with a file in the place of the library that the plugin looks for.
func render(ctx context.Context, root string) error {
	p, err := profile.Load("h100-hgx")
	if err != nil {
		return err
	}
	if err := tree.Render(ctx, tree.Options{Profile: p, Nodes: 1, Root: root, PlainDevices: true}); err != nil {
		return err
	}
	library := filepath.Join(root, "driver/usr/lib64/libnvidia-ml.so.1")
	if err := os.MkdirAll(filepath.Dir(library), 0o755); err != nil {
		return err
	}
	return os.WriteFile(library, nil, 0o600)
}

func TestGPUPluginHoldsInEachCase(t *testing.T) {
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	driver := torture.Gpufabric(program)
	driver.Environment = map[string]string{asPlugin: "1"}
	dir, err := os.MkdirTemp("/tmp", "tor") // short, because of Unix sockets below it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if !t.Failed() {
			_ = os.RemoveAll(dir) // a directory in /tmp that is left harms no other test
		}
	})
	results, err := torture.Run(t.Context(), torture.Options{Dir: dir, Drivers: []torture.Driver{driver}, Render: render, Progress: t.Logf,
		Patience: 5 * time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range results {
		if r.Outcome != torture.Held {
			t.Errorf("%s: %s: %s (logs are in %s)", r.Case, r.Outcome, r.Did, dir)
		}
	}
	if len(results) != len(torture.Names()) {
		t.Errorf("%d results of %d cases", len(results), len(torture.Names()))
	}
}

func TestTableHasARowForEachCaseAndAColumnForEachDriver(t *testing.T) {
	var b strings.Builder
	err := torture.WriteTable(&b, []torture.Result{
		{Case: "one", Driver: "a", Outcome: torture.Held, Did: "nothing | much"},
		{Case: "two", Driver: "a", Outcome: torture.Fell, Did: "ended\nat once"},
		{Case: "one", Driver: "b", Outcome: torture.NotApplicable, Did: "no hardware"},
	})
	want := "| case | a | b |\n|---|---|---|\n" +
		"| one | held: nothing \\| much | not applicable: no hardware |\n| two | fell: ended at once |  |\n"
	if err != nil || b.String() != want {
		t.Errorf("%v\n%s", err, b.String())
	}
}

func TestReadRejectsADescriptionWithoutAProgram(t *testing.T) {
	path := filepath.Join(t.TempDir(), "driver.yaml")
	for content, want := range map[string]string{
		"name: a\ndriverName: a.example.com\n":                               "program is empty",
		"name: a\ndriverName: a.example.com\nprogram: /nowhere\n":            "cannot be run",
		"driverName: a.example.com\nprogram: /bin/true\n":                    "name is empty",
		"name: a\ndriverName: a.example.com\nprogram: /bin/sh\nargs: [-x]\n": "unknown field",
		"name: a\ndriverName: a.example.com\nprogram: /bin/sh\n":             "",
		"name: a\ndriverName: ../../b c\nprogram: /bin/sh\n":                 `driverName "../../b c"`,
	} {
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := torture.Read(path)
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), strings.TrimPrefix(want, "program ")) {
			t.Errorf("%q: %v, want %q", content, err, want)
		}
	}
	_, err := torture.Run(t.Context(), torture.Options{Cases: []string{"no such case"}})
	if err == nil || !strings.Contains(err.Error(), "the cases are") {
		t.Errorf("an unknown case: %v", err)
	}
	for want, options := range map[string]torture.Options{
		"-5s":            {Patience: -5 * time.Second},
		`the name "one"`: {Drivers: []torture.Driver{{Name: "one"}, {Name: "two"}, {Name: "one"}}},
	} {
		if _, err := torture.Run(t.Context(), options); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q in it", err, want)
		}
	}
}
