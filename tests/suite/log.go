package suite

import (
	"bytes"
	"io"
	"os"
	"regexp"
	"slices"
	"strings"
)

const (
	tailBytes = 64 << 10
	lineRunes = 160 // a line of a log may be a page of HTML
)

// last returns the last lines of a log that are not blank, in one line.
func last(path string, lines int) string {
	file, err := os.Open(path)
	if err != nil {
		return "(no output)"
	}
	defer func() { _ = file.Close() }() // only read
	if info, err := file.Stat(); err == nil && info.Size() > tailBytes {
		_, _ = file.Seek(-tailBytes, io.SeekEnd) // else it is read from its beginning
	}
	content, err := io.ReadAll(io.LimitReader(file, tailBytes))
	if err != nil {
		return err.Error()
	}
	var tail []string
	for _, line := range slices.Backward(bytes.Split(content, []byte("\n"))) {
		if text := strings.TrimSpace(strings.ToValidUTF8(string(line), "?")); text != "" {
			if runes := []rune(text); len(runes) > lineRunes {
				text = string(runes[:lineRunes]) + "..."
			}
			tail = append(tail, text)
		}
		if len(tail) == lines {
			break
		}
	}
	if len(tail) == 0 {
		return "(no output)"
	}
	slices.Reverse(tail)
	return strings.Join(tail, " | ")
}

var (
	failure = regexp.MustCompile(`^\s*--- FAIL|^FAIL|^panic:|DATA RACE|^make.*Error|\.go:\d+:\d+: `)
	said    = regexp.MustCompile(`_test\.go:\d+: `)
	noise   = regexp.MustCompile(`^[IWEF]\d{4} \d\d:\d\d:|^(ok|\?) +\t`) // a program's log, and packages that passed
)

// Failures returns the lines of a part's log that report failures, and the 15 lines after each line that a test wrote, 150 at most. A
// test's log lines look as its errors do; figures are left out, lines of a program's log, and packages that passed.
func (r *Runner) Failures(part string) ([]string, error) {
	const after, most = 15, 150
	content, err := os.ReadFile(r.log(part))
	if err != nil {
		return nil, err
	}
	var lines []string
	left := 0
	for line := range strings.Lines(string(content)) {
		line = strings.TrimRight(line, "\n")
		if noise.MatchString(line) {
			continue
		}
		if failure.MatchString(line) {
			lines = append(lines, line)
			continue
		}
		if said.MatchString(line) && !strings.Contains(line, "measured: ") {
			left = after
		}
		if left > 0 {
			left--
			lines = append(lines, line)
		}
	}
	return lines[max(0, len(lines)-most):], nil
}
