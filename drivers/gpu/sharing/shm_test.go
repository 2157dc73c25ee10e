package sharing

import (
	"fmt"
	"os"
	"path/filepath"
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
