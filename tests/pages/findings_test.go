package pages

import (
	"strings"
	"testing"

	"gpufabric.io/drivers/doctor/findings"
)

// TestTroubleshootingHasAnEntryForEachFinding compares the doctor's table with the troubleshooting page, both ways: a word of a
// driver that is not in the table is a cause that the doctor cannot name.
func TestTroubleshootingHasAnEntryForEachFinding(t *testing.T) {
	root := root(t)
	entries := headings(t, root)
	for _, f := range findings.Table() {
		if !entries[f.Code] {
			t.Errorf("the finding %s has no entry in %s: add \"### %s\" (what it means, what to do)", f.Code, troubleshooting, f.Code)
		}
		if path, anchor, ok := strings.Cut(f.Entry(), "#"); path != troubleshooting || !ok || anchor == "" {
			t.Errorf("%s leads to %s", f.Code, f.Entry())
		}
	}
	for entry := range entries {
		if _, ok := findings.Find(entry); !ok && (word.MatchString(entry) || strings.Contains(entry, ".io/") || strings.Contains(entry,
			".com/")) {
			t.Errorf("%s has an entry for %s, which is no finding of the doctor: add it to drivers/doctor/findings", troubleshooting, entry)
		}
	}
}
