package program

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"
	apiserver "k8s.io/apiserver/pkg/server"
	cliflag "k8s.io/component-base/cli/flag"
	"k8s.io/component-base/cli/globalflag"
	basecompatibility "k8s.io/component-base/compatibility"
	"k8s.io/component-base/featuregate"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/component-base/term"
	"k8s.io/component-base/version/verflag"
	"k8s.io/kubernetes/cmd/kube-scheduler/app"
	"k8s.io/kubernetes/cmd/kube-scheduler/app/options"

	"gpufabric.io/drivers/node/httpserver"
)

// kube-scheduler's server reads up to 1 MiB of a request's header before it authenticates the caller, so that its connections are fewer
// than those of the other roles (httpserver.Connections).
const (
	connections = 48
	perAddress  = 16
)

// Command is kube-scheduler's command with this project's plugins, and with the bounds of the other roles on the connections of its port.
// app.NewSchedulerCommand makes the same command, and does not give access to the listener.
func Command() *cobra.Command {
	opts := options.NewOptions()
	cmd := &cobra.Command{
		Use:  "gpufabric-scheduler",
		Long: "kube-scheduler with plugins that place shares of GPUs and preempt for them.",
		Args: cobra.NoArgs,
		// The feature gates are set before RunE reads them.
		PersistentPreRunE: func(*cobra.Command, []string) error { return opts.ComponentGlobalsRegistry.Set() },
		RunE:              func(cmd *cobra.Command, _ []string) error { return run(cmd, opts) },
	}
	verflag.AddFlags(opts.Flags.FlagSet("global"))
	globalflag.AddGlobalFlags(opts.Flags.FlagSet("global"), cmd.Name(), logs.SkipLoggingConfigurationFlags())
	for _, flags := range opts.Flags.FlagSets {
		cmd.Flags().AddFlagSet(flags)
	}
	columns, _, _ := term.TerminalSize(cmd.OutOrStdout()) // 0: not a terminal
	cliflag.SetUsageAndHelpFunc(cmd, *opts.Flags, columns)
	return cmd
}

func run(cmd *cobra.Command, opts *options.Options) error {
	verflag.PrintAndExitIfRequested()
	gates := opts.ComponentGlobalsRegistry.FeatureGateFor(basecompatibility.DefaultKubeComponent)
	if err := logsapi.ValidateAndApply(opts.Logs, gates); err != nil {
		return fmt.Errorf("set up the log: %w", err)
	}
	cliflag.PrintFlags(cmd.Flags())

	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	signalled := apiserver.SetupSignalHandler()
	go func() {
		<-signalled
		cancel()
	}()
	completed, scheduler, err := app.Setup(ctx, opts, Plugins()...)
	if err != nil {
		return err
	}
	if gates, ok := gates.(featuregate.MutableFeatureGate); ok {
		gates.AddMetrics()
	}
	opts.ComponentGlobalsRegistry.AddMetrics()
	if serving := completed.SecureServing; serving != nil {
		serving.Listener = httpserver.Limit(serving.Listener, connections, perAddress)
		// Each of the 100 requests of an HTTP/2 connection could have a header of 1 MiB in memory.
		serving.DisableHTTP2 = true
	}
	return app.Run(ctx, completed, scheduler)
}
