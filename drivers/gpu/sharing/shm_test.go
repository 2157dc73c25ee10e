package sharing

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 3 && os.Args[1] == "with-shm" {
		fmt.Fprintln(os.Stderr, WithShm(os.Args[2], os.Args[3], os.Args[4:]...))
		os.Exit(1)
	}
	os.Exit(m.Run())
}

func TestTheDaemonSeesItsOwnShm(t *testing.T) {
	if err := syscall.Unshare(0); err != nil || os.Getuid() != 0 {
		t.Skip("needs root: a mount namespace of its own is what is tried here")
	}
	shm := t.TempDir()
	if err := os.WriteFile(filepath.Join(shm, "mark"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	out, err := Reexec("with-shm")(shm, "/bin/ls", "/dev/shm").CombinedOutput()
	if err != nil && strings.Contains(err.Error()+string(out), "not permitted") {
		t.Skipf("this machine allows no mount namespaces: %v %s", err, out)
	}
	if err != nil || strings.TrimSpace(string(out)) != "mark" {
		t.Errorf("the daemon sees %q, %v", out, err)
	}
	if _, err := os.Stat("/dev/shm/mark"); err == nil {
		t.Error("everybody sees it")
	}
}

func TestTheDaemonKeepsNoRightsOverTheNode(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("needs root: what a root process loses is what is tried here")
	}
	out, err := Reexec("with-shm")(t.TempDir(), "/bin/cat", "/proc/self/status").CombinedOutput()
	if err != nil && strings.Contains(err.Error()+string(out), "not permitted") {
		t.Skipf("this machine allows no mount namespaces: %v %s", err, out)
	}
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	status := map[string]string{}
	for line := range strings.Lines(string(out)) {
		name, value, _ := strings.Cut(line, ":")
		status[name] = strings.TrimSpace(value)
	}
	var want uint64
	for _, capability := range kept() {
		want |= 1 << capability
	}
	for _, set := range []string{"CapPrm", "CapEff", "CapBnd"} {
		got, err := strconv.ParseUint(status[set], 16, 64)
		if err != nil || got&^want != 0 {
			t.Errorf("%s is %s (error: %v), want nothing beyond %016x", set, status[set], err, want)
		}
	}
	if status["NoNewPrivs"] != "1" {
		t.Errorf("NoNewPrivs is %q", status["NoNewPrivs"])
	}
}
