// Command toolchain provides the commands that tests run and prints where they are.
//
//	toolchain [-list | -lock] [NAME...]
//
// Without names it provides all of them. Progress goes to standard error; standard output gets a line "NAME PATH" a tool, or only the path
// where one tool was named. With -lock it writes the checksums of all published files into the lock instead.
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
	flag.Parse()
	if err := run(*list, *lock, flag.Args()); err != nil {
		fmt.Fprintln(os.Stderr, "toolchain:", err)
		os.Exit(1)
	}
}

func run(list, lock bool, names []string) error {
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

// writeLock also locks kind's node image, where Docker has pulled it: the digest is what Docker checked.
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
