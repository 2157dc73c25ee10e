package short

import "testing"

func TestSkipLeavesATestOutOfTheShortSuiteOnly(t *testing.T) {
	for value, left := range map[string]bool{"": false, "1": true} {
		t.Run("set to "+value, func(t *testing.T) {
			t.Setenv(Variable, value)
			t.Run("long", func(t *testing.T) {
				t.Cleanup(func() {
					if t.Skipped() != left {
						t.Errorf("skipped: %v, want %v", t.Skipped(), left)
					}
				})
				Skip(t, "make test")
			})
		})
	}
}
