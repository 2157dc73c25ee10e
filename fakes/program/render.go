package program

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"gpufabric.io/fakes/cdi"
	"gpufabric.io/fakes/profile"
	"gpufabric.io/fakes/tree"
)

func renderCommand() *cobra.Command {
	var o tree.Options
	var name string
	var noLibraries bool
	var cdiRoot string
	c := &cobra.Command{
		Use:   "render --profile NAME|FILE --root DIR",
		Short: "Write one node of a profile to a directory: sys, proc, dev, driver and state",
		Args:  flagsOnly,
		RunE: func(c *cobra.Command, _ []string) error {
			p, err := profile.Load(name)
			if err != nil {
				return err
			}
			o.Profile = p
			if !noLibraries {
				if err := findPrograms(&o); err != nil {
					return err
				}
			}
			begin := time.Now()
			if err := tree.Render(c.Context(), o); err != nil {
				return err
			}
			if cdiRoot != "" {
				if err := describe(cdiRoot, o); err != nil {
					return err
				}
			}
			fmt.Fprintf(c.OutOrStdout(), "%s: node %d of profile %s, rendered in %d ms\n", o.Root, o.Node, p.Name, time.Since(begin).Milliseconds())
			return nil
		},
	}
	f := c.Flags()
	f.StringVar(&name, "profile", "", "name of a profile (see fakefabric profiles), or path of a profile file")
	f.IntVar(&o.Node, "node", 0, "which machine of the cluster, 0 to 1048575; each has UUIDs, GUIDs and MACs of its own")
	f.IntVar(&o.Nodes, "nodes", 0, "how many machines of this profile there are; 0: unknown")
	f.StringVar(&o.Root, "root", "", "the node's directory: made where it is not there, rendered again where a node is in it")
	f.StringVar(&o.LibraryDir, "library-dir", "",
		"where the built libraries are (default: FAKEFABRIC_LIBRARY_DIR, else lib beside the program)")
	f.BoolVar(&o.PlainDevices, "plain-devices", false, "make plain files in dev even where device nodes could be made")
	pluginsFlag(c, &o)
	f.BoolVar(&noLibraries, "no-libraries", false, "leave the libraries and tools of the driver root out")
	f.StringVar(&cdiRoot, "cdi-root", "",
		"also write CDI specifications to this directory (/var/run/cdi), for `docker run --device nvidia.com/gpu=all`")
	mustRequire(c, "profile", "root")
	return c
}

func pluginsFlag(c *cobra.Command, o *tree.Options) {
	c.Flags().BoolVar(&o.NVIDIAPlugins, "nvidia-plugins", false,
		"give the driver root device nodes and the state, which NVIDIA's DRA driver and nvidia-ctk pass on to containers")
}

// describe writes the CDI specifications of a rendered node.
func describe(cdiRoot string, o tree.Options) error {
	root, err := filepath.Abs(o.Root)
	if err != nil {
		return fmt.Errorf("root %s: %w", o.Root, err)
	}
	return cdi.Describe(cdiRoot, cdi.Options{Root: root, Node: o.Profile.Node(o.Node), Architecture: runtime.GOARCH})
}

// findPrograms sets where the libraries and the tools come from.
func findPrograms(o *tree.Options) error {
	var err error
	if o.LibraryDir, err = tree.FindLibraries(o.LibraryDir); err != nil {
		return err
	}
	if o.Tools, err = os.Executable(); err != nil {
		return fmt.Errorf("find this program: %w", err)
	}
	return nil
}

func validateCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "validate FILE...",
		Short: "Check profile files, and name every mistake with its line and key",
		Args:  wants(true, "profile files to check, and names of profiles"),
		RunE: func(c *cobra.Command, files []string) error {
			bad := 0
			for _, file := range files {
				_, err := profile.Load(file)
				if err != nil {
					bad++
					fmt.Fprintln(c.OutOrStdout(), strings.TrimSpace(err.Error()))
					continue
				}
				fmt.Fprintf(c.OutOrStdout(), "%s: valid\n", file)
			}
			if bad > 0 {
				return errors.New("profiles with mistakes: " + fmt.Sprint(bad))
			}
			return nil
		},
	}
}
