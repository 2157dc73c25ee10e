package listing_test

import (
	"testing"

	"gpufabric.io/drivers/api/listing"
)

func TestFirstCountsTheRestWhenThereAreMoreNames(t *testing.T) {
	names := []string{"a", "b", "c", "d"}
	for _, c := range []struct {
		names           int
		separator, want string
	}{{0, ", ", ""}, {1, ", ", "a"}, {2, ", ", "a, b"}, {4, ", ", "a, b and 2 more"}, {4, "; ", "a; b; and 2 more"}} {
		if got := listing.First(names[:c.names], 2, c.separator); got != c.want {
			t.Errorf("%d names are %q, want %q", c.names, got, c.want)
		}
	}
}
