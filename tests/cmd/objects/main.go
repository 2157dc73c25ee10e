// Command objects prints Nodes and ResourceSlices of a fakefabric profile, for clusters whose nodes are API objects alone:
//
//	make fakes build-fakefabric-objects
//	fakes/build/fakefabric objects --profile gb200-nvl72 --nodes 18 --kwok | kubectl apply --server-side -f -
//
// A cluster keeps a Node's status only by its subresource; KWOK writes it from the object's own.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/yaml"

	"gpufabric.io/fakes/profile"
	"gpufabric.io/tests/objects"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "fakefabric objects:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, to io.Writer) error {
	var o objects.Options
	flags := flag.NewFlagSet("fakefabric objects", flag.ContinueOnError)
	name := flags.String("profile", "", "name of a profile (see fakefabric profiles), or path of a profile file")
	format := flags.String("output", "yaml", "yaml: documents; json: one List")
	flags.IntVar(&o.Nodes, "nodes", 1, "how many nodes")
	flags.StringVar(&o.Driver, "driver", objects.GPUFabric, "whose ResourceSlices: gpufabric, nvidia (whole GPUs as NVIDIA's DRA driver 0.5 "+
		"publishes them), or empty for none")
	flags.BoolVar(&o.Extended, "extended", false, "put nvidia.com/gpu into allocatable, as NVIDIA's device plugin does")
	flags.BoolVar(&o.KWOK, "kwok", false, "mark the nodes as KWOK's")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("%q is no flag; see fakefabric objects -h", flags.Arg(0))
	}
	var err error
	if *name != "" {
		if o.Profile, err = profile.Load(*name); err != nil {
			return err
		}
	}
	if err := o.Check(); err != nil {
		return err
	}
	out := bufio.NewWriter(to)
	if err := print(ctx, o, *format, out); err != nil {
		return err
	}
	return out.Flush()
}

func print(ctx context.Context, o objects.Options, format string, out io.Writer) error {
	switch format {
	case "yaml":
		return objects.Make(ctx, o, func(object runtime.Object) error {
			text, err := yaml.Marshal(object)
			if err == nil {
				_, err = fmt.Fprintf(out, "---\n%s", text)
			}
			return err
		})
	case "json":
		separator := `{"apiVersion":"v1","kind":"List","items":[`
		if err := objects.Make(ctx, o, func(object runtime.Object) error {
			text, err := json.Marshal(object)
			if err == nil {
				_, err = fmt.Fprintf(out, "%s\n%s", separator, text)
			}
			separator = ","
			return err
		}); err != nil {
			return err
		}
		_, err := fmt.Fprintln(out, "\n]}")
		return err
	}
	return fmt.Errorf("--output is %q; allowed are yaml and json", format)
}
