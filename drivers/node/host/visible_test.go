package host

import (
	"bytes"
	"errors"
	"strings"
	"testing"
)

func TestLoggerEscapesControlCharacters(t *testing.T) {
	for name, text := range map[string]string{
		"a line":             "x\nI0101 00:00:00.000000       1 prepare.go:1] \"Prepared a claim\" claim=\"kube-system/forged\"",
		"a carriage return":  "x\rI0101 00:00:00.000000       1 prepare.go:1] \"Prepared a claim\"",
		"an escape in lines": "x\n\x1b[2J\x1b[H\x9b1;1H",
		"an escape":          "x\x1b]0;title\x07",
		"a turned direction": "x\n\u202egnp.exe",
		"no UTF-8":           "x\n\xff\xfe",
		"a separator":        "x\n\u2028I0101 forged",
	} {
		t.Run(name, func(t *testing.T) {
			var out bytes.Buffer
			log := Host{Stderr: &out}.Logger("gpu-plugin", 0)
			log.Error(errors.New(text), "Claim not prepared", "claim", text)
			log.Info(text)
			printed := out.String()
			for i, line := range strings.Split(strings.TrimSuffix(printed, "\n"), "\n") {
				if strings.HasPrefix(line, "I0101") || i > 0 && strings.Contains(line, "forged") && !strings.HasPrefix(line, "\t") &&
					!strings.HasPrefix(line, "I") {
					t.Errorf("line %d is a tenant's: %q", i, line)
				}
			}
			if i := strings.IndexFunc(printed, func(r rune) bool {
				return r < 0x20 && r != '\n' && r != '\t' || r >= 0x7f && r < 0xa0 || hides(r)
			}); i >= 0 {
				t.Errorf("the log has a character that steers terminals at %d: %q", i, printed)
			}
			t.Logf("attacker sees: %.120q", printed)
		})
	}
}
