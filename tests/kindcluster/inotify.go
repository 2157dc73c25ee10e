package kindcluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"

	"gpufabric.io/build/steps"
)

const (
	inotifyInstances = "/proc/sys/fs/inotify/max_user_instances"
	// wantInstances is the number that kind's documentation recommends. All nodes of a cluster are one user's (root's), and the kernel lets
	// a user have 128 by default. The drivers' roles and the nodes' own programs take about a hundred.
	wantInstances = 512
)

// inotify raises the kernel's limit of inotify instances for root. A kubelet that starts without a free instance logs an error
// and continues, but never sees a DRA driver ("DRA driver NAME is not registered").
type inotify struct {
	printer *steps.Printer
	file    string
}

func (inotify) Name() string { return "Inotify instances" }

func (s inotify) Execute(context.Context) error {
	content, err := os.ReadFile(s.file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil // Docker runs in a machine of its own
	}
	if err != nil {
		return fmt.Errorf("look how many inotify instances a user may have: %w", err)
	}
	have, err := strconv.Atoi(strings.TrimSpace(string(content)))
	if err != nil {
		return fmt.Errorf("%s: %w", s.file, err)
	}
	if have >= wantInstances {
		return nil
	}
	if err := os.WriteFile(s.file, []byte(strconv.Itoa(wantInstances)), 0o644); err != nil {
		fmt.Fprintf(s.printer, "a user may have %d inotify instances here, and kubelets may find none left; better: sudo sysctl "+
			"fs.inotify.max_user_instances=%d\n", have, wantInstances)
		return nil
	}
	fmt.Fprintf(s.printer, "fs.inotify.max_user_instances is %d now, it was %d\n", wantInstances, have)
	return nil
}
