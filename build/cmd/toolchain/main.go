// Command toolchain provides the commands that tests run and prints where they are.
//
//	toolchain [-list] [NAME...]
//
// Without names it provides all of them. Progress goes to standard error; standard output gets a line "NAME PATH" a tool, or only the path where
// one tool was named.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"sort"
	"syscall"

	"gpufabric.io/build/toolchain"
)

func main() {
	list := flag.Bool("list", false, "print the names of the tools there are, and do nothing")
	flag.Parse()
	if err := run(*list, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "toolchain:", err)
		os.Exit(1)
	}
}

func run(list bool, names []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if list {
		for _, name := range toolchain.Names() {
			fmt.Println(name)
		}
		return nil
	}
	paths, err := toolchain.Ensure(ctx, names...)
	if err != nil {
		return err
	}
	if len(names) == 1 {
		fmt.Println(paths[names[0]])
		return nil
	}
	found := make([]string, 0, len(paths))
	for name := range paths {
		found = append(found, name)
	}
	sort.Strings(found)
	for _, name := range found {
		fmt.Println(name, paths[name])
	}
	return nil
}
