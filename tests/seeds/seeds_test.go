package seeds

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// manifests is the directory of the seed manifests. SHA256SUMS (in the format of sha256sum) has their original checksums.
const manifests = "../../examples/manifests"

func TestSeedManifestsAreUnchanged(t *testing.T) {
	want := sums(t)
	for name, sum := range want {
		t.Run(name, func(t *testing.T) {
			content, err := os.ReadFile(filepath.Join(manifests, name))
			if err != nil {
				t.Fatalf("the seed manifest is gone: %v", err)
			}
			if got := fmt.Sprintf("%x", sha256.Sum256(content)); got != sum {
				t.Errorf("%s has changed: SHA-256 %s, given as %s; put a changed copy beside it under another name", name, got, sum)
			}
		})
	}
}

func TestSeedManifestsAreListed(t *testing.T) {
	// There are eleven files. A shorter list would silently guard fewer of them.
	if got := len(sums(t)); got != 11 {
		t.Errorf("SHA256SUMS lists %d manifests, 11 were given", got)
	}
}

// sums reads SHA256SUMS: file name to lower-case hexadecimal digest.
func sums(t *testing.T) map[string]string {
	t.Helper()
	file, err := os.Open("SHA256SUMS")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = file.Close() }()
	out := map[string]string{}
	lines := bufio.NewScanner(file)
	for lines.Scan() {
		sum, name, ok := strings.Cut(lines.Text(), "  ")
		if raw, err := hex.DecodeString(sum); !ok || err != nil || len(raw) != sha256.Size {
			t.Fatalf("SHA256SUMS: %q is not \"<64 hexadecimal digits>  <file>\"", lines.Text())
		}
		out[name] = sum
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}
