package wallclock_test

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"gpufabric.io/tests/simcluster/wallclock"
)

// clockEnv makes the test program print the time on request.
const clockEnv = "WALLCLOCK_TEST_TELLS_TIME"

func TestMain(m *testing.M) {
	if os.Getenv(clockEnv) != "" {
		began := time.Now()
		for asked := bufio.NewReader(os.Stdin); ; {
			if _, err := asked.ReadByte(); err != nil {
				os.Exit(0)
			}
			fmt.Println(time.Now().Unix(), time.Since(began).Milliseconds())
		}
	}
	os.Exit(m.Run())
}

func TestClockStepDoesNotMoveTimers(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), clockEnv+"=1")
	ask, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	answer, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = ask.Close(), cmd.Wait() }()
	lines := bufio.NewReader(answer)
	offBy := func(want time.Duration) {
		t.Helper()
		if _, err := io.WriteString(ask, "?"); err != nil {
			t.Fatal(err)
		}
		line, err := lines.ReadString('\n')
		if err != nil {
			t.Fatal(err)
		}
		var wall, monotonic int64
		if _, err := fmt.Sscan(line, &wall, &monotonic); err != nil {
			t.Fatal(err)
		}
		const tolerance = time.Minute // on a busy machine
		if off := time.Until(time.Unix(wall, 0)) - want; off.Abs() > tolerance {
			t.Errorf("its clock is off by %s more than %s", off, want)
		}
		if monotonic < 0 || monotonic > tolerance.Milliseconds() {
			t.Errorf("its monotonic clock moved by %d ms", monotonic)
		}
	}
	offBy(0)
	for _, step := range []struct{ by, sum time.Duration }{{2 * time.Hour, 2 * time.Hour}, {-5 * time.Hour, -3 * time.Hour},
		{3 * time.Hour, 0}} {
		if err := wallclock.Step(cmd.Process.Pid, step.by); err != nil {
			t.Skipf("no process can be given a clock here: %v", err)
		}
		offBy(step.sum)
	}
}
