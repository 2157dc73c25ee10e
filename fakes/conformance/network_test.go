package conformance

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"gpufabric.io/fakes/ibnet"
	"gpufabric.io/fakes/profile"
)

// cables lists the devices with their names, and the cables between their ports, in order.
func cables(text string) (all []string) {
	device := regexp.MustCompile(`^(?:Switch|Ca)\t\d+ "([^"]+)"\s+# "([^"]+)"`)
	cable := regexp.MustCompile(`^\[(\d+)\](?:\([0-9a-f]+\))?\s+"([^"]+)"\[(\d+)\]`)
	current := ""
	for line := range strings.Lines(text) {
		if match := device.FindStringSubmatch(line); match != nil {
			current = match[1]
			all = append(all, current+" is "+match[2])
		} else if match := cable.FindStringSubmatch(line); match != nil {
			all = append(all, fmt.Sprintf("%s[%s] to %s[%s]", current, match[1], match[2], match[3]))
		}
	}
	slices.Sort(all)
	return all
}

// TestIbnetdiscoverFindsTheNetwork runs ibnetdiscover on ibsim, which simulates the network of the file.
func TestIbnetdiscoverFindsTheNetwork(t *testing.T) {
	simulator, discover := need(t, "ibsim", "ibsim-utils"), need(t, "ibnetdiscover", "infiniband-diags")
	preload, err := filepath.Glob(filepath.Join(filepath.Dir(simulator), "../lib/*/umad2sim/libumad2sim.so"))
	if err != nil || len(preload) == 0 {
		t.Skip("skipped: libumad2sim.so is not installed (apt-get install libumad2sim0)")
	}
	for _, c := range []struct {
		name         string
		nodes, ports int
	}{{"gb200-nvl72", 36, 64}, {"h100-hgx", 4, 64}, {"gb200-nvl72", 36, 12}} { // the last one has cores
		name, nodes := c.name, c.nodes
		t.Run(fmt.Sprint(name, " ", c.ports), func(t *testing.T) {
			p, err := profile.Load(name)
			if err != nil {
				t.Fatal(err)
			}
			var text bytes.Buffer
			if err := ibnet.Write(&text, ibnet.Options{Profile: p, Nodes: nodes, Ports: c.ports}); err != nil {
				t.Fatal(err)
			}
			file := filepath.Join(t.TempDir(), "net")
			if err := os.WriteFile(file, text.Bytes(), 0o644); err != nil {
				t.Fatal(err)
			}
			// Its sockets have names of this process alone.
			env := []string{fmt.Sprintf("IBSIM_SOCKNAME=fakefabric-%d-%s-%d", os.Getpid(), name, c.ports)}
			simulate(t, env, simulator, file)
			found := output(t, append(env, "LD_PRELOAD="+preload[0]), discover)
			if diff := cmp.Diff(cables(text.String()), cables(found)); diff != "" {
				t.Errorf("ibnetdiscover (-file +found):\n%s", diff)
			}
		})
	}
}

// simulate runs ibsim until the test ends, and returns when it is ready.
func simulate(t *testing.T, env []string, program, file string) {
	t.Helper()
	cmd := exec.Command(program, "-s", "-N", "4096", "-P", "65536", file)
	cmd.Env = append(os.Environ(), env...)
	commands, err := cmd.StdinPipe() // it ends with its commands
	if err != nil {
		t.Fatal(err)
	}
	said, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ready := make(chan string, 1)
	go func() {
		var before strings.Builder
		for lines := bufio.NewScanner(said); lines.Scan(); {
			before.WriteString(lines.Text() + "\n")
			if strings.Contains(lines.Text(), "simulator ready") {
				ready <- ""
				break
			}
		}
		ready <- before.String()
		_, _ = io.Copy(io.Discard, said) // so that it can write on
	}()
	t.Cleanup(func() {
		_ = commands.Close()
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	select {
	case failed := <-ready:
		if failed != "" {
			t.Fatalf("ibsim ended early: %s", failed)
		}
	case <-time.After(time.Minute):
		t.Fatal("ibsim was not ready within a minute")
	}
}
