package sharing

import (
	"fmt"
	"strings"
	"testing"
)

func TestTailKeepsTheEndOfTheOutput(t *testing.T) {
	t.Parallel()
	var out tail
	for i := range 100_000 {
		if n, err := fmt.Fprintf(&out, "client %d\n", i); err != nil || n == 0 {
			t.Fatal(n, err)
		}
	}
	if got := out.String(); len(got) != tailBytes || !strings.HasSuffix(got, "client 99998\nclient 99999\n") || cap(out.kept) > 4*tailBytes {
		t.Errorf("%d bytes are kept (%d held), the last %q", len(got), cap(out.kept), got[max(0, len(got)-20):])
	}
	if n, err := out.Write(make([]byte, 3*tailBytes)); n != 3*tailBytes || err != nil || len(out.kept) != tailBytes {
		t.Errorf("a long line: %d, %v, %d kept", n, err, len(out.kept))
	}
}
