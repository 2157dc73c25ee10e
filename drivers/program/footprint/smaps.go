package footprint

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// mapping is one mapping of a process, from /proc/PID/smaps.
type mapping struct {
	start, end uintptr
	// permissions are such as "r-xp"; p is private.
	permissions string
	// path is the file's; empty where there is none.
	path string
	// changed is how much of it is this process's own rather than the file's, in KiB.
	changed int
}

// clean says whether this process has not changed a mapping, and cannot.
func (m mapping) clean() bool {
	return m.changed == 0 && !strings.Contains(m.permissions, "w") && strings.HasSuffix(m.permissions, "p")
}

// parse reads /proc/PID/smaps: for each mapping a line "400000-411000 r--p 00000000 fd:00 1234  /path", then lines "Anonymous:   4 kB".
func parse(smaps io.Reader) ([]mapping, error) {
	var mappings []mapping
	lines := bufio.NewScanner(smaps)
	for lines.Scan() {
		fields := strings.Fields(lines.Text())
		if len(fields) < 2 {
			continue
		}
		if name, isField := strings.CutSuffix(fields[0], ":"); isField {
			// Swap holds pages that were changed, too. (The dirty ones may be the file's own, when it was written just now.)
			if name != "Anonymous" && name != "Swap" || len(mappings) == 0 {
				continue
			}
			size, err := strconv.Atoi(fields[1])
			if err != nil {
				return nil, fmt.Errorf("%q: %w", lines.Text(), err)
			}
			mappings[len(mappings)-1].changed += size
			continue
		}
		m := mapping{permissions: fields[1]}
		if len(fields) > 5 {
			m.path = strings.Join(fields[5:], " ")
		}
		from, to, _ := strings.Cut(fields[0], "-")
		for _, bound := range []struct {
			text string
			to   *uintptr
		}{{from, &m.start}, {to, &m.end}} {
			address, err := strconv.ParseUint(bound.text, 16, 64)
			if err != nil {
				return nil, fmt.Errorf("%q: %w", lines.Text(), err)
			}
			*bound.to = uintptr(address)
		}
		mappings = append(mappings, m)
	}
	return mappings, lines.Err()
}
