package plugin

import (
	"fmt"
	"os"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/drivers/gpu/gputest"
	"gpufabric.io/drivers/node/atomicfile"
)

// TestPrepareSurvivesCrashAtEachStep ends the plugin at every step of every file that preparing a MIG device writes (the announcement,
// the record, the CDI spec), as kill -9 would, and starts it again. The claim must be prepared once and removed without a trace.
func TestPrepareSurvivesCrashAtEachStep(t *testing.T) {
	for crash := range 3 * len(atomicfile.Steps()) {
		file, step := crash/len(atomicfile.Steps()), atomicfile.Steps()[crash%len(atomicfile.Steps())]
		t.Run(fmt.Sprintf("file %d %s", file, step), func(t *testing.T) {
			t.Parallel()
			b := newBench(t, gputest.New(t, 1))
			b.stop()
			var steps atomic.Int32
			b.writer.Before = func(atomicfile.Step, string) error {
				if int(steps.Add(1)) > crash {
					return atomicfile.Crash()
				}
				return nil
			}
			b.start()
			c := b.claim("u1", nil, device{name: "gpu-0-mig-2g10gb-14-2"})
			if _, problem := b.prepare(c); problem == "" {
				t.Fatal("the crash was not met")
			}
			b.stop()
			b.writer.Before = nil
			b.start()
			ids := b.mustPrepare(c)
			if diff := cmp.Diff([]string{"14@2"}, b.machine.GPUs[0].Instances()); diff != "" {
				t.Errorf("instances (-want +got):\n%s", diff)
			}
			b.edits(c, ids...)
			if problem := b.unprepare(c); problem != "" {
				t.Error(problem)
			}
			if left := b.machine.GPUs[0].Instances(); len(left) > 0 {
				t.Errorf("instances left: %v", left)
			}
			for _, dir := range []string{b.options.CDIRoot, filepath.Join(b.options.StateDir, "claims")} {
				if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
					t.Errorf("%s holds %v, %v", dir, left, err)
				}
			}
		})
	}
}
