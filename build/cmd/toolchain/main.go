// Command toolchain provides the commands that tests run and prints where they are.
//
//	toolchain [-list | -lock | -since VERSION] [NAME...]
//
// Without names it provides all of them. Progress goes to standard error; standard output gets a line "NAME PATH" a tool, or only the path
// where one tool was named. With -since it takes one tool from the PATH where that is VERSION or later, although tests need a newer one.
// With -lock it writes the checksums of all published files into the lock instead.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"sort"
	"strings"
	"syscall"

	"gpufabric.io/build/toolchain"
)

func main() {
	list := flag.Bool("list", false, "print the names of the tools there are, and do nothing")
	lock := flag.Bool("lock", false, "write the checksums that the projects publish into "+toolchain.LockName+" (needs the release sites)")
	since := flag.String("since", "", "the oldest version of the one named tool that is taken from the PATH, such as 1.8.0")
	flag.Parse()
	if err := run(*list, *lock, *since, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "toolchain:", err)
		os.Exit(1)
	}
}

func run(list, lock bool, since string, names []string) error {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if list {
		for _, name := range toolchain.Names() {
			fmt.Println(name)
		}
		return nil
	}
	if lock {
		return writeLock(ctx)
	}
	if since != "" {
		if len(names) != 1 {
			return fmt.Errorf("-since %s with %d names: it goes with one", since, len(names))
		}
		path, err := toolchain.EnsureSince(ctx, names[0], since)
		if err != nil {
			return err
		}
		fmt.Println(path)
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

// writeLock also locks kind's node image, where Docker has pulled it: Docker has checked the digest.
func writeLock(ctx context.Context) error {
	images := map[string]string{}
	said, err := exec.CommandContext(ctx, "docker", "image", "inspect", "--format", `{{join .RepoDigests "\n"}}`, toolchain.NodeImage).Output()
	if _, digest, ok := strings.Cut(strings.TrimSpace(string(said)), "@sha256:"); ok && err == nil {
		images[toolchain.NodeImage] = strings.Fields(digest)[0]
	} else {
		fmt.Fprintf(os.Stderr, "%s is not locked: docker pull it first\n", toolchain.NodeImage)
	}
	path, err := toolchain.WriteLock(ctx, os.Stderr, images)
	if err != nil {
		return err
	}
	fmt.Println(path)
	return nil
}
