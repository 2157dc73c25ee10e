package imex_test

import (
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"gpufabric.io/fakes/imex"
)

func TestNamesAreReadFromAFileLikeEtcHosts(t *testing.T) {
	path := filepath.Join(t.TempDir(), "hosts")
	lookUp := imex.HostsFile(path)
	if _, err := lookUp(t.Context(), "a"); err == nil {
		t.Error("a name of a file that is missing")
	}
	text := "# comment\n127.0.0.1\tlocalhost\n10.0.0.1 other a # b\nno-address c\n10.0.0.3\nfd00::2 a\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string][]string{"a": {"10.0.0.1", "fd00::2"}, "localhost": {"127.0.0.1"}, "10.9.9.9": {"10.9.9.9"},
		"b": nil, "c": nil, "10": nil} {
		found, err := lookUp(t.Context(), name)
		var got []string
		for _, address := range found {
			got = append(got, address.String())
		}
		if !slices.Equal(got, want) || (err == nil) != (want != nil) {
			t.Errorf("%s: %v, %v; want %v", name, found, err, want)
		}
	}
	if _, err := lookUp(t.Context(), netip.IPv6Loopback().String()); err != nil {
		t.Error(err)
	}
}
