package toolchain

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// failingGo puts a go on the PATH that fails as it does where the registry drops a connection, the given number of times, and counts its
// runs. It knows no other command.
func failingGo(t *testing.T, failures int) (runs func() int) {
	t.Helper()
	dir := t.TempDir()
	counted := filepath.Join(dir, "counted")
	script := fmt.Sprintf(`#!/bin/sh
echo x >>%s
[ $(wc -l <%[1]s) -gt %d ] || { echo 'net/http: TLS handshake timeout' >&2; exit 1; }
echo /modules/one
`, counted, failures)
	if err := os.WriteFile(filepath.Join(dir, "go"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	return func() int {
		data, err := os.ReadFile(counted)
		if err != nil {
			t.Fatal(err)
		}
		return strings.Count(string(data), "x")
	}
}

func TestFetchRepeatsWhenTheRegistryDropsAConnection(t *testing.T) {
	for failures, want := range map[int]string{0: "", 2: "", 3: "TLS handshake timeout"} {
		t.Run(fmt.Sprint(failures), func(t *testing.T) {
			runs := failingGo(t, failures)
			c, log := newToolchain(t, writeTool)
			c.Modules = t.TempDir()
			listed, err := c.fetch(t.Context(), Tool{Name: "one", Version: "v1"}, "one")
			if want == "" && (err != nil || strings.TrimSpace(listed) != "/modules/one") {
				t.Errorf("listed %q, %v", listed, err)
			}
			if want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("error %v, want %q", err, want)
			}
			if got := strings.Count(log.String(), "of 3: "); got != failures || runs() != min(failures+1, 3) {
				t.Errorf("%d failures logged after %d runs:\n%s", got, runs(), log)
			}
		})
	}
}
