// Package doctor is `gpufabric doctor`. It follows the chain from the hardware to a running workload. It reports the first cause
// for which something waits or is broken, the source of that finding, the remedy, and the objects that wait for it. It reads the
// API server with the user's rights, and changes nothing.
package doctor

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"gpufabric.io/drivers/doctor/diagnosis"
	"gpufabric.io/drivers/doctor/machine"
	"gpufabric.io/drivers/doctor/snapshot"
	"gpufabric.io/drivers/node/host"
)

// Exit statuses beside those of a finding's stage (findings.Stage.ExitStatus).
const (
	// ExitNotFound: the subject does not exist.
	ExitNotFound = 2
	// ExitUnknown: nothing was found, and something could not be read.
	ExitUnknown = 3
)

// StatusError ends the program with a status of its own. The message has been written already where Message is empty.
type StatusError struct {
	Status  int
	Message string
}

// Error implements error.
func (e *StatusError) Error() string { return e.Message }

// ExitStatus is the program's.
func (e *StatusError) ExitStatus() int { return e.Status }

// options are the command's flags.
type options struct {
	kubeconfig, context string
	namespace, system   string
	output, from        string
	fromMemory          string
	timeout, total      time.Duration
}

// Command is `gpufabric doctor`.
func Command(h host.Host) *cobra.Command {
	var o options
	command := &cobra.Command{
		Use:   "doctor [pod|claim|node|domain|pool|install] [name]",
		Short: "Say the first cause of what waits or is broken: of a pod, claim, node, domain, pool, or the installation",
		Long: "Say the first cause of what waits or is broken, what it was read from, what to do, and what waits behind it.\n" +
			"Without arguments the whole installation is looked at. It reads the API server with your rights, and changes nothing.\n\n" +
			"Exit status: 0 nothing was found; 1 the command could not run; 2 there is no such object; 3 nothing was found, and\n" +
			"something could not be read; 11 to 21 by the link of the chain that the first cause breaks: 11 cluster, 12 install,\n" +
			"13 node, 14 driver, 15 plugin, 16 slice, 17 scheduler, 18 claim, 19 prepare, 20 container, 21 peers.",
		Example: "  gpufabric doctor\n  gpufabric doctor pod --namespace training worker-0\n  gpufabric doctor domain training/job -o json",
		Args:    func(_ *cobra.Command, args []string) error { _, err := o.subject(args); return err },
		RunE:    func(cmd *cobra.Command, args []string) error { return o.run(cmd.Context(), h, args) },
	}
	flags := command.PersistentFlags()
	flags.StringVar(&o.kubeconfig, "kubeconfig", "",
		"kubeconfig of the cluster; empty: KUBECONFIG, ~/.kube/config, else the pod's service account")
	flags.StringVar(&o.context, "context", "", "context of the kubeconfig; empty: its current one")
	flags.StringVarP(&o.namespace, "namespace", "n", "", "namespace of the object; empty: that of the kubeconfig's context")
	flags.StringVar(&o.system, "system-namespace", snapshot.DefaultSystem, "gpufabric's own namespace, which is read where all may not be")
	flags.DurationVar(&o.timeout, "request-timeout", snapshot.DefaultTimeout, "bound on each request")
	flags.DurationVar(&o.total, "timeout", time.Minute, "bound on all of it")
	command.Flags().StringVarP(&o.output, "output", "o", "text", "text or json")
	command.Flags().StringVar(&o.from, "from", "", "read an archive of gpufabric doctor bundle instead of a cluster")
	command.Flags().StringVar(&o.fromMemory, "from-memory", "64Mi", "with --from: how much memory the archive's objects may take")
	command.AddCommand(o.preflightCommand(h), o.bundleCommand(h), machine.Command(h))
	return command
}

// subject reads the arguments.
func (o *options) subject(args []string) (diagnosis.Subject, error) {
	if len(args) == 0 {
		return diagnosis.Subject{Kind: diagnosis.Install}, nil
	}
	s := diagnosis.Subject{Kind: diagnosis.SubjectKind(args[0])}
	switch {
	case !slices.Contains(diagnosis.SubjectKinds(), s.Kind):
		return s, fmt.Errorf("%q cannot be examined: allowed are pod, claim, node, domain, pool and install", args[0])
	case s.Kind == diagnosis.Install && len(args) > 1:
		return s, fmt.Errorf("install takes no name, not %q", args[1:])
	case s.Kind != diagnosis.Install && len(args) != 2:
		return s, fmt.Errorf("the name of the %s is missing: gpufabric doctor %s NAME", s.Kind, s.Kind)
	case s.Kind == diagnosis.Install:
		return s, nil
	}
	s.Name = args[1]
	if s.Kind == diagnosis.Node || s.Kind == diagnosis.Pool {
		return s, nil
	}
	s.Namespace = o.namespace
	if namespace, name, both := strings.Cut(s.Name, "/"); both {
		if o.namespace != "" && o.namespace != namespace {
			return s, fmt.Errorf("%s is in namespace %s by its name and in %s by --namespace", args[1], namespace, o.namespace)
		}
		s.Namespace, s.Name = namespace, name
	}
	if s.Name == "" {
		return s, fmt.Errorf("the name of the %s is empty", s.Kind)
	}
	return s, nil
}

func (o *options) run(ctx context.Context, h host.Host, args []string) error {
	if !slices.Contains([]string{"text", "json"}, o.output) {
		return fmt.Errorf("--output is text or json, not %q", o.output)
	}
	subject, err := o.subject(args)
	if err != nil {
		return err
	}
	taken, err := o.take(ctx, h, &subject)
	if err != nil {
		return err
	}
	report, err := diagnosis.Diagnose(taken, subject)
	var missing *diagnosis.NotFoundError
	if errors.As(err, &missing) {
		return &StatusError{Status: ExitNotFound, Message: missing.Error()}
	}
	if err != nil {
		return err
	}
	if o.output == "json" {
		err = writeJSON(h.Out(), report)
	} else {
		err = Write(host.Visible(h.Out()), report)
	}
	switch {
	case err != nil:
		return fmt.Errorf("write the answer: %w", err)
	case report.First != nil:
		return &StatusError{Status: report.ExitStatus()}
	case hides(report.Lacking):
		return &StatusError{Status: ExitUnknown}
	}
	return nil
}

// hides reports whether something that was not read may hide a cause. A kind that the server does not serve hides none.
func hides(unread []snapshot.Unread) bool {
	return slices.ContainsFunc(unread, func(u snapshot.Unread) bool { return u.Why != snapshot.Absent })
}

// take reads the cluster, and completes the subject's namespace.
func (o *options) take(ctx context.Context, h host.Host, subject *diagnosis.Subject) (*snapshot.Snapshot, error) {
	if o.from != "" {
		if subject.Namespace == "" && namespaced(subject.Kind) {
			subject.Namespace = metav1.NamespaceDefault
		}
		return o.load(o.from)
	}
	ctx, cancel := context.WithTimeout(ctx, o.total)
	defer cancel()
	config, namespace, err := o.reach(h)
	if err != nil {
		return nil, err
	}
	if subject.Namespace == "" && namespaced(subject.Kind) {
		subject.Namespace = namespace
	}
	scope := snapshot.Scope{Namespace: subject.Namespace, System: o.system, Timeout: o.timeout}
	if subject.Kind == diagnosis.Pod {
		scope.Pod = subject.Name
	}
	taken, err := snapshot.Take(ctx, config, scope)
	return taken, silent(err)
}

// silent adds advice to the error of an API server that does not answer.
func silent(err error) error {
	var mute *snapshot.SilentError
	if errors.As(err, &mute) {
		return fmt.Errorf("%w: look at the API server and at the network to it; the kubeconfig may name another one "+
			"(docs/troubleshooting.md#apiserversilent)", err)
	}
	return err
}

func namespaced(k diagnosis.SubjectKind) bool {
	return slices.Contains([]diagnosis.SubjectKind{diagnosis.Pod, diagnosis.Claim, diagnosis.Domain}, k)
}

// reach finds the API server, and the default namespace.
func (o *options) reach(h host.Host) (*rest.Config, string, error) {
	if h.RESTConfig != nil && o.kubeconfig == "" {
		config, err := h.RESTConfig()
		return config, "default", err
	}
	rules := clientcmd.NewDefaultClientConfigLoadingRules()
	rules.ExplicitPath = o.kubeconfig
	loader := clientcmd.NewNonInteractiveDeferredLoadingClientConfig(rules, &clientcmd.ConfigOverrides{CurrentContext: o.context})
	config, err := loader.ClientConfig()
	if err != nil {
		return nil, "", fmt.Errorf("find an API server (--kubeconfig, KUBECONFIG, ~/.kube/config or a pod's service account): %w", err)
	}
	namespace, _, err := loader.Namespace()
	if err != nil {
		return nil, "", fmt.Errorf("read the kubeconfig's namespace: %w", err)
	}
	return config, namespace, nil
}
