package short

import "testing"

func TestOnlyAShortRunLeavesOut(t *testing.T) {
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

func TestNothingBeginsAfterTheEnd(t *testing.T) {
	for value, left := range map[string]bool{"": false, "1": true, "9999999999": false, "soon": false} {
		t.Run("until "+value, func(t *testing.T) {
			t.Setenv(Until, value)
			t.Run("part", func(t *testing.T) {
				t.Cleanup(func() {
					if t.Skipped() != left {
						t.Errorf("skipped: %v, want %v", t.Skipped(), left)
					}
				})
				SkipLate(t)
			})
		})
	}
}
