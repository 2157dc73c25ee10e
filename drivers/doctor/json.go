package doctor

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"unicode"
)

// writeJSON writes JSON that cannot control a terminal. encoding/json escapes ASCII's control characters; the rest (C1, and
// characters that change the direction of text) is escaped here, as in JSON.
func writeJSON(to io.Writer, value any) error {
	text, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		return err
	}
	var out bytes.Buffer
	for _, r := range string(text) {
		switch {
		case r == '\n' || r >= 0x20 && r < 0x7f || r >= 0xa0 && !unicode.Is(unicode.Cf, r) && r != 0x2028 && r != 0x2029:
			out.WriteRune(r)
		case r > 0xffff:
			out.WriteRune(unicode.ReplacementChar)
		default:
			fmt.Fprintf(&out, `\u%04x`, r)
		}
	}
	out.WriteByte('\n')
	_, err = to.Write(out.Bytes())
	return err
}
