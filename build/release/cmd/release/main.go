// Command release makes, compares and pushes releases of this repository.
//
//	release build -version 0.1.0 -keys DIRECTORY|none [-out dist]   from the commit that is checked out, into dist/0.1.0
//	release push DIRECTORY REGISTRY                                 what is in DIRECTORY/oci, such as to ghcr.io/gpufabric
//	release compare DIRECTORY DIRECTORY                             names every file that differs
//	release keys DIRECTORY                                          new keys
//	release lock                                                    pins the C library's files of this machine
//	release provider-repository DIRECTORY                           the provider as a repository of its own
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/google/go-containerregistry/pkg/name"

	"gpufabric.io/build/release"
	"gpufabric.io/build/repository"
)

const usage = "release build|push|compare|keys|lock|provider-repository; see build/release/cmd/release/main.go"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:])
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "release:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, arguments []string) error {
	if len(arguments) == 0 {
		return fmt.Errorf("want a command: %s", usage)
	}
	command, arguments := arguments[0], arguments[1:]
	want := func(n int, what string) error {
		if len(arguments) != n {
			return fmt.Errorf("release %s takes %s, not %q", command, what, arguments)
		}
		return nil
	}
	began := time.Now()
	progress := func(what string) {
		fmt.Fprintf(os.Stderr, "release: %s: %s\n", time.Since(began).Round(time.Second), what)
	}
	switch command {
	case "build":
		return build(ctx, arguments, progress)
	case "push":
		if err := want(2, "the directory of a release and a registry with a path"); err != nil {
			return err
		}
		return release.Push(ctx, arguments[0], arguments[1], progress, registryOptions()...)
	case "compare":
		if err := want(2, "two directories"); err != nil {
			return err
		}
		return compare(arguments[0], arguments[1])
	case "keys":
		if err := want(1, "a directory"); err != nil {
			return err
		}
		return release.WriteKeys(arguments[0], "gpufabric", "release@gpufabric.io", 4096)
	case "lock":
		root, err := repository.Root()
		if err != nil {
			return err
		}
		return release.WriteLock(ctx, root)
	case "provider-repository":
		if err := want(1, "a directory that does not exist yet"); err != nil {
			return err
		}
		root, err := repository.Root()
		if err != nil {
			return err
		}
		return release.ProviderRepository(ctx, root, arguments[0])
	default:
		return fmt.Errorf("no command %q: %s", command, usage)
	}
}

// registryOptions allow a registry without TLS if it was requested; those on the loopback device are always allowed.
func registryOptions() []name.Option {
	if os.Getenv("RELEASE_PLAIN_HTTP") == "1" {
		return []name.Option{name.Insecure}
	}
	return nil
}

func compare(a, b string) error {
	differences, err := release.Compare(a, b)
	if err != nil {
		return err
	}
	for _, difference := range differences {
		fmt.Println(difference)
	}
	if len(differences) > 0 {
		return fmt.Errorf("%s and %s differ in %d places", a, b, len(differences))
	}
	fmt.Printf("%s and %s are equal\n", a, b)
	return nil
}

func build(ctx context.Context, arguments []string, progress func(string)) error {
	flags := flag.NewFlagSet("release build", flag.ContinueOnError)
	version := flags.String("version", "", "version without v, such as 0.1.0")
	keys := flags.String("keys", "", "directory with signing.key and openpgp.asc; none: nothing is signed")
	out := flags.String("out", "dist", "directory that gets a directory named by the version")
	if err := flags.Parse(arguments); err != nil {
		return err
	}
	root, err := repository.Root()
	if err != nil {
		return err
	}
	return release.Make(ctx, release.Order{Root: root, Version: *version, Keys: *keys, Out: *out}, progress, os.Stderr)
}
