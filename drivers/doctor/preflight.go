package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"sigs.k8s.io/yaml"

	"gpufabric.io/drivers/doctor/findings"
	"gpufabric.io/drivers/doctor/preflight"
	"gpufabric.io/drivers/doctor/snapshot"
	"gpufabric.io/drivers/node/host"
)

// preflightFlags are the flags of `gpufabric doctor preflight` alone.
type preflightFlags struct {
	values, output, image string
	print                 bool
}

// preflightCommand is `gpufabric doctor preflight`.
func (o *options) preflightCommand(h host.Host) *cobra.Command {
	var f preflightFlags
	command := &cobra.Command{
		Use:   "preflight",
		Short: "Say before an install what would not work on this cluster",
		Long: "Say before an install what would not work on this cluster: versions, APIs, other drivers, PodSecurity, quota, placement.\n" +
			"What stands on the nodes alone (the driver, GPUs, RDMA devices, containerd's configuration) is not seen from outside. With\n" +
			"--print-jobs it prints one Job for each node that looks there; the next preflight reads what they found. Their pods have no\n" +
			"token and no capability, and see directories of the node read-only. They are gone after an hour.\n\n" +
			"Exit status: 0 nothing fails; 1 the command could not run; 12 a check fails.",
		Example: "  gpufabric doctor preflight --values values.yaml\n" +
			"  gpufabric doctor preflight --values values.yaml --print-jobs | kubectl create --filename -\n" +
			"  kubectl --namespace gpufabric-system wait --for=condition=complete --timeout=10m job --selector " +
			"app.kubernetes.io/name=gpufabric-preflight\n" +
			"  gpufabric doctor preflight --values values.yaml",
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.preflight(cmd.Context(), h, f) },
	}
	command.Flags().StringVarP(&f.values, "values", "f", "", "values of the chart, as for helm install")
	command.Flags().StringVarP(&f.output, "output", "o", "text", "text or json")
	command.Flags().BoolVar(&f.print, "print-jobs", false, "print the Jobs that look at the nodes, and make no check")
	command.Flags().StringVar(&f.image, "image", "",
		"image of the Jobs' pods; empty: the values' image.repository and image.digest or image.tag")
	return command
}

// preflight makes the checks, or prints the Jobs.
func (o *options) preflight(ctx context.Context, h host.Host, f preflightFlags) error {
	if !slices.Contains([]string{"text", "json"}, f.output) {
		return fmt.Errorf("--output is text or json, not %q", f.output)
	}
	var text []byte
	var err error
	if f.values != "" {
		if text, err = os.ReadFile(f.values); err != nil {
			return fmt.Errorf("read the chart's values: %w", err)
		}
	}
	v, err := preflight.Read(text)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, o.total)
	defer cancel()
	config, _, err := o.reach(h)
	if err != nil {
		return err
	}
	scope := snapshot.Scope{System: o.system, Timeout: o.timeout, Preflight: true}
	taken, err := snapshot.Take(ctx, config, scope)
	if err != nil {
		return silent(err)
	}
	if f.print {
		return jobs(h, taken, v, o.system, f.image)
	}
	return table(h, preflight.Run(taken, v, o.system), f.output)
}

// jobs writes the Jobs as YAML documents, after the namespace where there is none.
func jobs(h host.Host, taken *snapshot.Snapshot, v preflight.Values, namespace, image string) error {
	all, err := preflight.Jobs(taken, v, namespace, image)
	if err != nil {
		return err
	}
	var documents []any
	if space := preflight.Namespace(taken, namespace); space != nil {
		documents = append(documents, space)
	}
	for i := range all {
		documents = append(documents, &all[i])
	}
	for _, d := range documents {
		text, err := document(d)
		if err == nil {
			_, err = fmt.Fprintf(h.Out(), "---\n%s", text)
		}
		if err != nil {
			return fmt.Errorf("write the Jobs: %w", err)
		}
	}
	return nil
}

// document is an object as a person would write it: without the status that an API server fills in.
func document(object any) ([]byte, error) {
	text, err := json.Marshal(object)
	if err != nil {
		return nil, err
	}
	fields := map[string]any{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return nil, err
	}
	delete(fields, "status")
	return yaml.Marshal(fields)
}

// table writes the checks; one that fails is the exit status.
func table(h host.Host, checks []preflight.Check, output string) error {
	var err error
	if output == "json" {
		err = writeJSON(h.Out(), checks)
	} else {
		rows := tabwriter.NewWriter(host.Visible(h.Out()), 0, 0, 2, ' ', 0)
		_, _ = fmt.Fprintln(rows, "CHECK\tRESULT\tDETAIL") // Flush returns the error
		for _, c := range checks {
			detail := one(c.Detail)
			if c.Entry != "" {
				detail += " (" + c.Entry + ")"
			}
			_, _ = fmt.Fprintf(rows, "%s\t%s\t%s\n", c.Name, c.Result, detail)
		}
		err = rows.Flush()
	}
	if err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	if len(preflight.Failing(checks)) > 0 {
		return &StatusError{Status: findings.Install.ExitStatus()}
	}
	return nil
}
