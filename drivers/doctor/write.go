package doctor

import (
	"fmt"
	"io"
	"strings"

	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/doctor/snapshot"
)

// longest is how much of a message is written as text; JSON has all of it.
const longest = 600

// behind is how many of the further findings are written.
const behind = 12

// Write writes a report for a person. The writer must make control characters visible (host.Visible): names and messages are others'.
func Write(to io.Writer, r *diagnosis.Report) error {
	var out strings.Builder
	if r.First == nil {
		fmt.Fprintf(&out, "%s: nothing was found that keeps it from working.\n", r.Subject)
	} else {
		fmt.Fprintf(&out, "%s: %s (%s)\n\n", r.Subject, r.First.Code, r.First.Stage)
		paragraph(&out, "cause", one(r.First.Says))
		if r.First.Count > 1 {
			paragraph(&out, "on", objects(r.First))
		}
		paragraph(&out, "read from", r.First.From)
		paragraph(&out, "do", r.First.Do)
		paragraph(&out, "see", r.First.Entry)
	}
	if len(r.Behind) > 0 {
		fmt.Fprintf(&out, "\nWaits behind it, or is broken too:\n")
		for i, f := range r.Behind {
			if i == behind {
				fmt.Fprintf(&out, "  and %d more\n", len(r.Behind)-behind)
				break
			}
			fmt.Fprintf(&out, "  %s (%s, %s): %s\n", f.Code, f.Stage, objects(&f), one(f.Says))
		}
	}
	lacking(&out, r.Lacking)
	if r.Release.Unsure != "" {
		fmt.Fprintf(&out, "\nUnsure: %s.\n", strings.Join(strings.Fields(r.Release.Unsure), " "))
	}
	_, err := io.WriteString(to, out.String())
	return err
}

func paragraph(out *strings.Builder, head, text string) { fmt.Fprintf(out, "  %-10s %s\n", head, text) }

func objects(f *diagnosis.Found) string {
	text := strings.Join(f.Objects, ", ")
	if more := f.Count - len(f.Objects); more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}

// one makes a message a single line, and shortens it.
func one(message string) string {
	message = strings.Join(strings.Fields(message), " ")
	if len(message) > longest {
		message = strings.ToValidUTF8(message[:longest], "") + "..."
	}
	return message
}

// lacking names the objects that could not be read: rights on one line, the rest on lines of their own.
func lacking(out *strings.Builder, unread []snapshot.Unread) {
	rights := map[string]bool{}
	var names, rest []string
	for _, u := range unread {
		switch {
		case u.Why == snapshot.Absent:
			rest = append(rest, u.Kind+": the API server does not serve it")
		case u.Why != snapshot.Forbidden:
			rest = append(rest, u.String())
		default:
			right := u.Verb + " " + u.Kind
			if u.Namespace != "" {
				right += " in namespace " + u.Namespace
			}
			if !rights[right] {
				rights[right] = true
				names = append(names, right)
			}
		}
	}
	if len(names) > 0 {
		fmt.Fprintf(out, "\nNot seen, because you lack the right to %s.\n", strings.Join(names, ", "))
	}
	for _, line := range rest {
		fmt.Fprintf(out, "\nNot seen: %s.\n", one(line))
	}
}
