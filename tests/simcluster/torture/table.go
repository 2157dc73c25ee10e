package torture

import (
	"fmt"
	"io"
	"strings"
)

// longestCell is how many characters of a driver's own words a cell has.
const longestCell = 300

// reason is the text of an error without the mark.
func reason(err error) string { return strings.TrimPrefix(err.Error(), errNotApplicable.Error()+": ") }

// WriteTable writes one Markdown table: a row for each case, a column for each driver.
func WriteTable(w io.Writer, results []Result) error {
	var drivers, names []string
	cells := map[string]map[string]string{}
	for _, r := range results {
		if cells[r.Case] == nil {
			cells[r.Case] = map[string]string{}
			names = append(names, r.Case)
		}
		if len(drivers) == 0 || drivers[len(drivers)-1] != r.Driver {
			drivers = append(drivers, r.Driver)
		}
		cells[r.Case][r.Driver] = fmt.Sprintf("%s: %s", r.Outcome, cell(r.Did))
	}
	var text strings.Builder
	fmt.Fprintf(&text, "| case | %s |\n|---|%s\n", strings.Join(drivers, " | "), strings.Repeat("---|", len(drivers)))
	for _, name := range names {
		fmt.Fprintf(&text, "| %s |", name)
		for _, driver := range drivers {
			fmt.Fprintf(&text, " %s |", cells[name][driver])
		}
		text.WriteString("\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// cell makes one line of text that does not end its cell.
func cell(text string) string {
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, "|", `\|`)), " ")
	if runes := []rune(text); len(runes) > longestCell {
		return string(runes[:longestCell]) + " …"
	}
	return text
}
