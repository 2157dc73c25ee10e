package snapshot

import (
	"net/url"
	"regexp"
	"strings"
)

// Errors of Go's HTTP client have the API server's address in these places. Programs log them, and write them into conditions and Events.
// No pattern takes a quotation mark or a backslash, so that JSON stays JSON.
var (
	// requested is a request's URL: an API server's paths are known.
	requested = regexp.MustCompile(`https?://[^\s"\\/]+(/(?:api|apis|version|healthz|livez|readyz|openapi|metrics)\b)`)
	// dialled is a connection: `dial tcp 10.0.0.1:6443: connect: ...`, `read tcp 10.0.0.2:41234->10.0.0.1:6443: ...`,
	// whose arrow JSON escapes.
	dialled = regexp.MustCompile(`\b(dial|read|write) (tcp|udp)[46]? (?:[^\s"\\]|\\u003e)+`)
	// resolved is a name: `lookup api.example.com on 10.0.0.10:53: no such host`.
	resolved = regexp.MustCompile(`\blookup [^\s"\\]+( on [^\s"\\]+)?`)
	// verified are the names of a certificate: `certificate is valid for a, 10.0.0.1, not b`.
	verified = regexp.MustCompile(`\bcertificate is (not )?valid for [^"\\\n]*`)
)

const anAddress = "API-SERVER"

// withoutAddresses removes the API server's address from the words of programs: as the reader has it, and from errors of others' clients,
// to whom it has another one.
func (s *Snapshot) withoutAddresses(text []byte) []byte {
	text = requested.ReplaceAll(text, []byte("https://"+anAddress+"$1"))
	text = dialled.ReplaceAll(text, []byte("$1 $2 "+anAddress+":"))
	text = resolved.ReplaceAll(text, []byte("lookup "+anAddress+":"))
	text = verified.ReplaceAll(text, []byte("certificate is ${1}valid for other names"))
	if server, err := url.Parse(s.Server.URL); err == nil && server.Host != "" {
		// A short name without a dot may be a word of any other text; with its port it is the address.
		for _, name := range []string{server.Host, server.Hostname()} {
			if strings.ContainsAny(name, ".:") {
				text = regexp.MustCompile(`\b`+regexp.QuoteMeta(name)+`\b`).ReplaceAll(text, []byte(anAddress))
			}
		}
	}
	return text
}
