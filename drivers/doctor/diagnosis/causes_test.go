package diagnosis_test

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/doctor/findings"
	"gpufabric.io/drivers/doctor/snapshot"
)

// cause is one injected cause.
type cause struct {
	part    string // install, scheduling, GPU, MIG and shares, compute domain, RDMA
	name    string
	subject diagnosis.Subject
	code    string   // the first cause
	also    []string // codes that must be found behind it, as the second of two causes
	inject  func(*ground)
}

func install() diagnosis.Subject { return diagnosis.Subject{Kind: diagnosis.Install} }
func ofPod(name string) diagnosis.Subject {
	return diagnosis.Subject{Kind: diagnosis.Pod, Namespace: tenant, Name: name}
}

// causes are all injected causes, by part.
func causes() []cause {
	return slices.Concat(installCauses(), schedulingCauses(), gpuCauses(), shareCauses(), domainCauses(), rdmaCauses(), effectCauses())
}

// TestDiagnosisFindsTheFirstCause injects each cause into a healthy cluster on a real API server, one after the other. With
// GPUFABRIC_UPDATE=1 it writes the table of docs/reports/causes.md.
func TestDiagnosisFindsTheFirstCause(t *testing.T) {
	g := newGround(t)
	t.Run("nothing is found on a healthy cluster", func(t *testing.T) {
		g.t = t
		if r := g.ask(install()); r.First != nil || len(r.Lacking) > 0 {
			text, _ := json.MarshalIndent(r, "", " ") // plain fields
			t.Fatalf("found %s", text)
		}
	})
	parts := map[string]int{}
	both := 0
	for _, c := range causes() {
		parts[c.part]++
		if len(c.also) > 0 {
			both++
		}
		t.Run(c.part+"/"+c.name, func(t *testing.T) {
			g.t = t
			defer g.heal()
			c.inject(g)
			r := g.ask(c.subject)
			if r.First == nil {
				t.Fatalf("nothing was found, want %s", c.code)
			}
			if r.First.Code != c.code {
				t.Errorf("first is %s (%s), want %s; behind it %v", r.First.Code, r.First.Says, c.code, codes(r.Behind))
			}
			for _, code := range c.also {
				if !slices.Contains(codes(r.Behind), code) {
					t.Errorf("%s is not behind %s, but %v", code, r.First.Code, codes(r.Behind))
				}
			}
			if _, ok := findings.Find(r.First.Code); !ok || r.First.From == "" || r.First.Do == "" || r.ExitStatus() < 11 {
				t.Errorf("the finding is incomplete: %+v", r.First)
			}
		})
	}
	t.Run("a tenant's Events blame nobody", func(t *testing.T) {
		g.t = t
		forgedEvents(t, g)
	})
	t.Run("a tenant's labels make nothing gpufabric's", func(t *testing.T) {
		g.t = t
		forgedLabels(t, g)
	})
	g.t = t
	if r := g.ask(install()); r.First != nil {
		t.Errorf("after the last cause was taken back, %s is found: %s", r.First.Code, r.First.Says)
	}
	t.Logf("%d causes by part: %v; %d of them with two causes at once", len(causes()), parts, both)
}

func codes(all []diagnosis.Found) []string {
	var out []string
	for _, f := range all {
		out = append(out, f.Code)
	}
	return out
}

// TestDiagnosisTableOfCausesIsCurrent compares docs/reports/causes.md with the causes.
func TestDiagnosisTableOfCausesIsCurrent(t *testing.T) {
	path := filepath.Join("..", "..", "..", "docs", "reports", "causes.md")
	page, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	const begin, end = "<!-- causes -->\n", "<!-- end of causes -->\n"
	before, rest, ok := strings.Cut(string(page), begin)
	_, after, closed := strings.Cut(rest, end)
	if !ok || !closed {
		t.Fatalf("%s has no place for the table", path)
	}
	var table strings.Builder
	table.WriteString("| part | cause | first code | behind it |\n|---|---|---|---|\n")
	for _, c := range causes() {
		var also []string
		for _, code := range c.also {
			also = append(also, fmt.Sprintf("`%s`", code))
		}
		fmt.Fprintf(&table, "| %s | %s | [`%s`](../troubleshooting.md#%s) | %s |\n", c.part, c.name, c.code, findings.Anchor(c.code),
			strings.Join(also, ", "))
	}
	want := before + begin + table.String() + end + after
	if want == string(page) {
		return
	}
	if os.Getenv("GPUFABRIC_UPDATE") == "" {
		t.Fatalf("%s has another table: run GPUFABRIC_UPDATE=1 go test ./doctor/diagnosis -run %s", path, t.Name())
	}
	if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
		t.Fatal(err)
	}
}

func TestNamesThatAreNearAreOffered(t *testing.T) {
	s := &snapshot.Snapshot{Server: snapshot.Server{Version: "v1.36.0", Taken: time.Now()}}
	for _, name := range []string{"worker-0", "worker-1", "trainer"} {
		s.Pods = append(s.Pods, *pod(name, ""))
	}
	_, err := diagnosis.Diagnose(s, ofPod("wroker-0"))
	if err == nil || !strings.Contains(err.Error(), "there is no pod tenant/wroker-0; there is pod tenant/worker-0") {
		t.Errorf("got %v", err)
	}
}
