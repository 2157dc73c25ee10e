// Package listing writes lists of names for people.
package listing

import (
	"fmt"
	"strings"
)

// First joins the first names, most at most, and counts the rest: "a, b and 3 more". The separator is ", ", or "; " for texts that have
// commas of their own: "a; b; and 3 more".
func First(names []string, most int, separator string) string {
	text := strings.Join(names[:min(most, len(names))], separator)
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf("%s and %d more", strings.TrimRight(separator, ", "), more)
	}
	return text
}
