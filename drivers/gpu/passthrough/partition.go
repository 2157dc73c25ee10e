package passthrough

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/fabricpartition"
	"gpufabric.io/drivers/hardware/pci"
	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/draplugin"
)

// The reasons of claims that cannot have a partition of Fabric Manager.
const (
	reasonNoPartition   = "NoFabricPartition"
	reasonFabricManager = "FabricManagerFailed"
)

// partitioned returns the cards that have a partition of Fabric Manager, where the node's GPUs need one. Where the fabric manager does
// not answer, these are those of its last answer.
func (k *Kind) partitioned(ctx context.Context, cards []*Card) ([]*Card, error) {
	if k.Partitions == nil || len(cards) == 0 {
		return cards, nil
	}
	var gpus []pci.Address
	for _, c := range cards {
		gpus = append(gpus, c.GPU.Address)
	}
	lost, err := k.Partitions.Refresh(ctx, gpus)
	if err != nil && !cards[0].Switched && len(k.Partitions.Journal.Claims()) == 0 && !k.behindBridge() {
		return cards, nil // a node without NVSwitches has no fabric manager
	}
	k.reportLost(lost)
	var with []*Card
	var without []pci.Address
	for _, c := range cards {
		if _, found := k.Partitions.GPU(c.GPU.Address); found {
			with = append(with, c)
		} else {
			without = append(without, c.GPU.Address)
		}
	}
	switch {
	case err != nil:
		err = fmt.Errorf("GPUs cannot get a partition of Fabric Manager: %w", err)
	case len(without) > 0:
		err = fmt.Errorf("GPUs %v are not passed through: they are in no partition of Fabric Manager, or their module ID is unknown: NVIDIA's "+
			"driver must have reported it once (nvidia-smi -q)", without)
	}
	return with, err
}

// switchManaged marks the function through which an HGX B200 or B300 manages its NVSwitches, in its vital product data: they are behind
// a NIC, not on the PCI bus (Fabric Manager user guide, "Additional Steps for NVIDIA HGX B200/B300 Systems").
const switchManaged = "SW_MNG"

// behindBridge reports whether an NVSwitch is behind a NIC. It looks once: reading vital product data takes long.
func (k *Kind) behindBridge() bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.bridged == nil {
		files, _ := filepath.Glob(filepath.Join(k.Switcher.Places.Sysfs, "class/infiniband/*/device/vpd")) // its pattern is valid
		found := slices.ContainsFunc(files, func(file string) bool {
			text, err := os.ReadFile(file)
			return err == nil && bytes.Contains(text, []byte(switchManaged))
		})
		k.bridged = &found
	}
	return *k.bridged
}

// reportLost reports once that the fabric manager has forgotten partitions.
func (k *Kind) reportLost(lost []int) {
	k.mu.Lock()
	changed := !slices.Equal(lost, k.lost)
	k.lost = lost
	k.mu.Unlock()
	if changed && len(lost) > 0 {
		k.Report("FabricPartitionLost", fmt.Sprintf("Fabric Manager has partitions %v not active any more, whose virtual machines have lost "+
			"NVLink: it was restarted without FABRIC_MODE_RESTART=1, or they were deactivated by hand; restart these machines", lost))
	}
}

// partition finds the partition of a claim's cards; nil: they need none.
func (k *Kind) partition(cards []*Card) (*int, error) {
	if k.Partitions == nil {
		return nil, nil
	}
	var gpus []pci.Address
	needed := false
	for _, c := range cards {
		_, found := k.Partitions.GPU(c.GPU.Address)
		needed = needed || found
		gpus = append(gpus, c.GPU.Address)
	}
	if !needed {
		return nil, nil
	}
	id, err := k.Partitions.Match(gpus)
	if err != nil {
		return nil, draplugin.Refuse(reasonNoPartition, "the claim's GPUs %w", err)
	}
	return &id, nil
}

// activate activates a claim's partition. It is done while the GPUs have NVIDIA's driver, by which links are trained.
func (k *Kind) activate(ctx context.Context, claim types.UID, id *int) error {
	if id == nil {
		return nil
	}
	if err := k.Partitions.Activate(ctx, claim, *id); err != nil {
		return draplugin.Refuse(reasonFabricManager, "%w", err)
	}
	return nil
}

// deactivate deactivates a claim's partition, once its GPUs have their drivers back.
func (k *Kind) deactivate(ctx context.Context, claim types.UID, id *int) error {
	if k.Partitions == nil {
		if id != nil {
			k.Report("FabricPartitionLeft", fmt.Sprintf("partition %d of Fabric Manager stays active: gpus.passthrough.fabricManager was "+
				"unset while a claim had it; fmpm -d %d deactivates it", *id, *id))
		}
		return nil
	}
	if err := k.Partitions.Deactivate(ctx, claim); err != nil {
		return draplugin.Refuse(reasonFabricManager, "%w", err)
	}
	return nil
}

// restore adds a recorded claim to the journal of partitions, which may have been lost.
func (k *Kind) restore(record claimstate.Record) error {
	kept, err := claimstate.Decode[data](record)
	if err != nil || kept.Partition == nil || k.Partitions == nil {
		return err
	}
	return k.Partitions.Restore(record.UID, *kept.Partition)
}

// returnPartitions deactivates the partitions of claims that have no record any more, once their GPUs are given back.
func (k *Kind) returnPartitions(ctx context.Context) error {
	if k.Partitions == nil {
		return nil
	}
	taken := map[types.UID]bool{}
	for _, e := range k.Switcher.Journal.Entries() {
		taken[e.Claim] = true
	}
	var errs []error
	for _, claim := range k.Partitions.Journal.Claims() {
		k.mu.Lock()
		kept := k.blind || k.claims[claim]
		k.mu.Unlock()
		if !kept && !taken[claim] {
			errs = append(errs, k.Partitions.Deactivate(ctx, claim))
		}
	}
	return errors.Join(errs...)
}

// Left reports whether GPUs or partitions are still to be given back.
func (k *Kind) Left() bool {
	return len(k.Switcher.Journal.Entries()) > 0 || k.Partitions != nil && len(k.Partitions.Journal.Claims()) > 0
}

// place is a card's place in partitions.
func (k *Kind) place(c *Card) (fabricpartition.GPU, bool) {
	if k.Partitions == nil {
		return fabricpartition.GPU{}, false
	}
	return k.Partitions.GPU(c.GPU.Address)
}
