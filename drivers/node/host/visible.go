package host

import (
	"fmt"
	"io"
	"unicode/utf8"
)

// Visible returns a writer of text for a terminal. It writes control characters as escapes. Each call of its Write must take whole
// characters.
func Visible(to io.Writer) io.Writer { return visible{to} }

// visible writes a log in which nothing is hidden. The logger quotes strings, but prints those of several lines unchanged, with
// escape sequences that colour, move or erase text on a terminal.
type visible struct{ to io.Writer }

// Write implements io.Writer. It must be given whole entries.
func (v visible) Write(entry []byte) (int, error) {
	shown := make([]byte, 0, len(entry))
	for rest := entry; len(rest) > 0; {
		r, size := utf8.DecodeRune(rest)
		switch {
		case r == '\n' || r == '\t':
			shown = append(shown, rest[:size]...)
		case r < 0x20 || r >= 0x7f && r < 0xa0 || r == utf8.RuneError && size == 1:
			shown = fmt.Appendf(shown, `\x%02x`, rest[:size])
		case hides(r):
			shown = fmt.Appendf(shown, `\u%04x`, r)
		default:
			shown = append(shown, rest[:size]...)
		}
		rest = rest[size:]
	}
	if _, err := v.to.Write(shown); err != nil {
		return 0, err
	}
	return len(entry), nil
}

// hides reports whether a character changes the direction of text, or ends a line for some programs.
func hides(r rune) bool {
	return r >= 0x200e && r <= 0x200f || r >= 0x2028 && r <= 0x202e || r >= 0x2066 && r <= 0x2069 || r == 0xfeff
}
