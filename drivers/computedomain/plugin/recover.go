package plugin

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/claimstate"
)

// Recover implements draplugin.Recoverer: directories of domains that no claim is for are removed. Where a record cannot be read none is:
// any may be that of a daemon that runs, which could not start nvidia-imex again without.
func (k *preparer) Recover(ctx context.Context, records []claimstate.Record, aside []types.UID) error {
	wanted, sure := map[string]bool{}, len(aside) == 0
	for _, record := range records {
		data, err := decode(record)
		if err != nil {
			klog.FromContext(ctx).Error(err, "Could not decode a claim's record")
			sure = false
			continue
		}
		k.holdings.hold(record.UID, record.Namespace, data)
		for _, domain := range data.domains() {
			wanted[string(domain)] = true
		}
	}
	if !sure {
		k.holdings.doubt()
		klog.FromContext(ctx).Info("Directories of domains are kept while records of claims cannot be read", "aside", aside)
		return nil
	}
	for _, parent := range []string{k.domainsDir(), k.privateDirs()} {
		entries, err := os.ReadDir(parent)
		if err != nil && !os.IsNotExist(err) {
			return fmt.Errorf("list the domains' directories: %w", err)
		}
		for _, entry := range entries {
			if wanted[entry.Name()] {
				continue
			}
			if err := os.RemoveAll(filepath.Join(parent, entry.Name())); err != nil {
				return fmt.Errorf("remove the directory of a domain that is gone: %w", err)
			}
		}
	}
	return nil
}

// removeDir removes the directories of a domain that no claim of this node is for any more.
func (k *preparer) removeDir(domain types.UID) error {
	if err := errors.Join(os.RemoveAll(k.domainDir(domain)), os.RemoveAll(k.privateDir(domain))); err != nil {
		return fmt.Errorf("remove the domain's directory: %w", err)
	}
	return nil
}

func (k *preparer) domainsDir() string { return filepath.Join(k.stateDir, "domains") }

// domainDir is the directory of a domain that its daemon's container has, and writes into.
func (k *preparer) domainDir(domain types.UID) string {
	return filepath.Join(k.domainsDir(), filepath.Base(string(domain)))
}

func (k *preparer) privateDirs() string { return filepath.Join(k.stateDir, "daemons") }

// privateDir is a directory of a domain of which its daemon's container has single parts alone.
func (k *preparer) privateDir(domain types.UID) string {
	return filepath.Join(k.privateDirs(), filepath.Base(string(domain)))
}
