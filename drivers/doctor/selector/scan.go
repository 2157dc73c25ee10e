package selector

import (
	"strings"
)

// token is a word of an expression.
type token struct {
	kind rune // 'i' identifier, 's' string, 'n' number, 'o' operator
	text string
}

// operators are the longest first.
func operators() []string {
	return []string{"&&", "||", "==", "!=", "<=", ">=", "<", ">", "!", "(", ")", "[", "]", ".", ",", "?", ":", "+", "-", "*", "/", "%"}
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }
func isLetter(c byte) bool {
	return c == '_' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

// scan splits an expression into tokens; bad says what cannot be read.
func scan(text string) (tokens []token, bad string) {
next:
	for i := 0; i < len(text); {
		c := text[i]
		start := i
		switch {
		case strings.ContainsRune(" \t\r\n", rune(c)):
			i++
			continue
		case strings.HasPrefix(text[i:], "//"):
			end := strings.IndexByte(text[i:], '\n')
			if end < 0 {
				return tokens, ""
			}
			i += end
			continue
		case (c == 'r' || c == 'R' || c == 'b' || c == 'B') && i+1 < len(text) && (text[i+1] == '"' || text[i+1] == '\''):
			return nil, "a raw string or bytes"
		case isLetter(c):
			for i < len(text) && (isLetter(text[i]) || isDigit(text[i])) {
				i++
			}
			tokens = append(tokens, token{'i', text[start:i]})
			continue
		case isDigit(c):
			for i < len(text) && (isDigit(text[i]) || isLetter(text[i]) || text[i] == '.') {
				i++
			}
			tokens = append(tokens, token{'n', text[start:i]})
			continue
		case c == '"' || c == '\'':
			end := strings.IndexByte(text[i+1:], c)
			if end < 0 || strings.HasPrefix(text[i:], strings.Repeat(string(c), 3)) || strings.ContainsAny(text[i+1:i+1+end], "\\\n") {
				return nil, "a string with escapes, or of several lines"
			}
			tokens = append(tokens, token{'s', text[i+1 : i+1+end]})
			i += end + 2
			continue
		}
		for _, o := range operators() {
			if strings.HasPrefix(text[i:], o) {
				tokens = append(tokens, token{'o', o})
				i += len(o)
				continue next
			}
		}
		return nil, "the character " + string(rune(c))
	}
	return tokens, ""
}
