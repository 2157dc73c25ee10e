// Package trace reads the files that libnvidia-ml.so.1 writes when FAKEFABRIC_TRACE names one.
package trace

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// Call is one NVML call, one line of a trace: time, PID, program, function, return code, implemented or stub, separated by tabs.
type Call struct {
	// Seconds since the epoch.
	Seconds     float64
	PID         int
	Program     string
	Function    string
	Result      int
	Implemented bool
}

// Read reads a trace. It counts invalid lines instead of failing: a process may have died while it wrote.
func Read(r io.Reader) (calls []Call, damaged int, err error) {
	lines := bufio.NewScanner(r)
	for lines.Scan() {
		c, err := parse(lines.Text())
		if err != nil {
			damaged++
			continue
		}
		calls = append(calls, c)
	}
	return calls, damaged, lines.Err()
}

func parse(line string) (Call, error) {
	f := strings.Split(line, "\t")
	if len(f) != 6 {
		return Call{}, errors.New("a call has six fields")
	}
	seconds, err1 := strconv.ParseFloat(f[0], 64)
	pid, err2 := strconv.Atoi(f[1])
	result, err3 := strconv.Atoi(f[4])
	return Call{seconds, pid, f[2], f[3], result, f[5] == "implemented"}, errors.Join(err1, err2, err3)
}

// Line is one line of a summary: how often a program called a function with a result.
type Line struct {
	Program, Function string
	Implemented       bool
	Calls             int
	// Results counts return codes.
	Results map[int]int
}

// Summarize counts calls per program and function; stubs come first, then the most called.
func Summarize(calls []Call) []Line {
	type key struct{ program, function string }
	lines := map[key]*Line{}
	for _, c := range calls {
		k := key{c.Program, c.Function}
		if lines[k] == nil {
			lines[k] = &Line{Program: c.Program, Function: c.Function, Implemented: c.Implemented, Results: map[int]int{}}
		}
		lines[k].Calls++
		lines[k].Results[c.Result]++
	}
	var all []Line
	for _, l := range lines {
		all = append(all, *l)
	}
	slices.SortFunc(all, func(a, b Line) int {
		if a.Implemented != b.Implemented {
			return map[bool]int{false: -1, true: 1}[a.Implemented]
		}
		return cmp.Or(cmp.Compare(a.Program, b.Program), cmp.Compare(b.Calls, a.Calls), cmp.Compare(a.Function, b.Function))
	})
	return all
}

// Write prints a summary.
func Write(w io.Writer, lines []Line, damaged int) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%-22s %-46s %8s  %-12s %s\n", "PROGRAM", "FUNCTION", "CALLS", "KIND", "RESULTS")
	for _, l := range lines {
		kind := "implemented"
		if !l.Implemented {
			kind = "STUB"
		}
		var results []string
		for _, code := range slices.Sorted(maps.Keys(l.Results)) {
			results = append(results, fmt.Sprintf("%d×%d", l.Results[code], code))
		}
		fmt.Fprintf(&b, "%-22s %-46s %8d  %-12s %s\n", l.Program, l.Function, l.Calls, kind, strings.Join(results, " "))
	}
	if damaged > 0 {
		fmt.Fprintf(&b, "%d lines could not be read\n", damaged)
	}
	_, err := io.WriteString(w, b.String())
	return err
}
