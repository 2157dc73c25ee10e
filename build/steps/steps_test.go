package steps

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type step struct {
	name string
	do   func(ctx context.Context) error
}

func (s step) Name() string                      { return s.name }
func (s step) Execute(ctx context.Context) error { return s.do(ctx) }

func nothing(context.Context) error { return nil }

var seconds = regexp.MustCompile(`\d+\.\d s`)

func TestStepsReadLikeATableOfContents(t *testing.T) {
	var out strings.Builder
	p := NewPrinter(&out)
	_, err := p.Run(t.Context(),
		step{"Docker", nothing},
		step{"Node image", func(ctx context.Context) error {
			_, err := p.Run(ctx, step{"Root file system", nothing}, step{"Import", func(context.Context) error {
				fmt.Fprint(p, "unpacking 3 images ... ")
				fmt.Fprintln(p, "done")
				return nil
			}})
			return err
		}},
		step{"Nodes", nothing})
	if err != nil {
		t.Fatal(err)
	}
	want := `[1/3] Docker ... N s
[2/3] Node image ... 
      [1/2] Root file system ... N s
      [2/2] Import ... 
            unpacking 3 images ... done
      [2/2] Import: N s
[2/3] Node image: N s
[3/3] Nodes ... N s
`
	if diff := cmp.Diff(want, seconds.ReplaceAllString(out.String(), "N s")); diff != "" {
		t.Error(diff)
	}
}

func TestStepsEndAtTheFirstFailure(t *testing.T) {
	var out strings.Builder
	broken := errors.New("no space left")
	timings, err := NewPrinter(&out).Run(t.Context(),
		step{"First", nothing},
		step{"Second", func(context.Context) error { return broken }},
		step{"Third", func(context.Context) error { t.Error("ran after a failure"); return nil }})
	if !errors.Is(err, broken) || !strings.HasPrefix(err.Error(), "Second: ") {
		t.Errorf("error %v", err)
	}
	if len(timings) != 2 {
		t.Errorf("timings of %d steps, want 2", len(timings))
	}
	if !strings.Contains(out.String(), "[2/3] Second ... failed after") {
		t.Errorf("output:\n%s", out.String())
	}
}

func TestStepsStopWhenCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	_, err := NewPrinter(&strings.Builder{}).Run(ctx,
		step{"First", func(context.Context) error { cancel(); return nil }},
		step{"Second", func(context.Context) error { t.Error("ran after the context ended"); return nil }})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("error %v, want %v", err, context.Canceled)
	}
}
