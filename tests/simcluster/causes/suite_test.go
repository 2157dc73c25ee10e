//go:build causes

package causes

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/doctor/diagnosis"
)

// cause is one injected cause, or two.
type cause struct {
	part, name string
	ask        []string // what the doctor is asked about: kind and name
	code       string   // the first cause
	behind     []string // further codes that the answer must have, as the second of two causes
	inject     func(*ground)
}

// causes are all, by part.
func causes() []cause {
	return slices.Concat(installCauses(), schedulingCauses(), gpuCauses(), shareCauses(), domainCauses(), rdmaCauses())
}

// early are codes that are not wrong, only early: the cluster does not show the cause yet.
func early() []string { return []string{"", "PodNotScheduledYet"} }

const (
	// patience bounds the wait for the right answer after a cause was injected. It includes the cluster's own reaction: a
	// node's grace period, the plugin's next check.
	patience = 45 * time.Second
	// unasked is the pause between the injection and the first question, so that pods in replacement are not taken for a cause.
	unasked = 2 * time.Second
	// settled is how long the right answer has to remain.
	settled = 3 * time.Second
)

// answer is the doctor's last answer about a cause.
type answer struct {
	cause
	right   bool
	first   string        // the first code of the last answer
	wrong   []string      // other first codes that it gave before
	reacted time.Duration // from the injection to the right answer
	took    time.Duration // the command that gave it
}

// TestDoctorFindsTheFirstCauseOnACluster injects each cause into the running cluster and asks until the first cause is right and
// remains so.
func TestDoctorFindsTheFirstCauseOnACluster(t *testing.T) {
	t.Run("nothing is found on a healthy cluster", func(t *testing.T) {
		(&ground{Namespace: shared.Namespace(t), t: t}).awaitHealth()
	})
	var all []answer
	for _, c := range causes() {
		t.Run(c.part+"/"+c.name, func(t *testing.T) {
			g := &ground{Namespace: shared.Namespace(t), t: t}
			// This cleanup runs after those of the cause, and before that of the namespace.
			t.Cleanup(g.awaitHealth)
			begin := time.Now()
			c.inject(g)
			a := g.seek(c, begin)
			all = append(all, a)
			switch {
			case !a.right:
				t.Errorf("the first cause is %q, want %q; other answers before: %q", a.first, c.code, a.wrong)
			case len(a.wrong) > 0:
				t.Errorf("before %s the doctor said %q", c.code, a.wrong)
			}
		})
	}
	report(t, all)
}

// seek asks until the answer is right and remains so.
func (g *ground) seek(c cause, begin time.Time) answer {
	g.t.Helper()
	a := answer{cause: c}
	time.Sleep(unasked)
	var since time.Time
	for {
		asked := time.Now()
		r := g.doctor(g.t.Context(), c.ask...)
		a.first = ""
		if r.First != nil {
			a.first = r.First.Code
		}
		lacking := missing(r, c.behind)
		switch {
		case a.first == c.code && len(lacking) == 0:
			if since.IsZero() {
				since = asked
				a.reacted, a.took = asked.Sub(begin), time.Since(asked)
			}
			if time.Since(since) > settled {
				a.right = true
				g.t.Logf("%s after %.1f s: %s", a.first, a.reacted.Seconds(), r.First.Says)
				return a
			}
		case a.first == c.code:
			since = time.Time{} // the further findings may take longer
		default:
			since = time.Time{}
			if !slices.Contains(early(), a.first) && !slices.Contains(a.wrong, a.first) {
				a.wrong = append(a.wrong, a.first)
				g.t.Logf("after %.1f s it says %s", time.Since(begin).Seconds(), describe(r))
			}
		}
		if time.Since(begin) > patience && since.IsZero() {
			g.t.Logf("the last answer is %s; %v are not behind it", describe(r), lacking)
			return a
		}
		time.Sleep(500 * time.Millisecond)
	}
}

// missing returns the codes that are not among an answer's further findings.
func missing(r *diagnosis.Report, codes []string) []string {
	var out []string
	for _, code := range codes {
		if !slices.ContainsFunc(r.Behind, func(f diagnosis.Found) bool { return f.Code == code }) {
			out = append(out, code)
		}
	}
	return out
}

func describe(r *diagnosis.Report) string {
	if r.First == nil {
		return fmt.Sprintf("that there is nothing (not read: %v)", r.Lacking)
	}
	var out strings.Builder
	for _, f := range append([]diagnosis.Found{*r.First}, r.Behind...) {
		fmt.Fprintf(&out, "%s of %s (%s); ", f.Code, strings.Join(f.Objects, ", "), f.Says)
	}
	return out.String()
}
