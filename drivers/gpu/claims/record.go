package claims

import (
	"errors"
	"slices"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/gpu/sharing"
)

// A claim's record has the effects that are to be undone with the claim. It is written before each effect, so that a crash loses none. An
// effect that was refused is taken out of the record again: a later change by others must not be undone with the claim.

// intend writes an effect that is to be undone with the claim.
func (k *Preparer) intend(p *preparation) error {
	if err := p.progress.Intend(p.data); err != nil {
		return err
	}
	k.remember(p.claim.UID, p.data)
	return nil
}

// remember stores the data of a claim's record in memory.
func (k *Preparer) remember(claim types.UID, d data) {
	k.mu.Lock()
	defer k.mu.Unlock()
	d.Sharing, d.Partitions = slices.Clone(d.Sharing), slices.Clone(d.Partitions)
	k.recorded[claim] = d
}

func (k *Preparer) recordOf(claim types.UID) data {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.recorded[claim]
}

// recordedBefore reports whether an earlier try of the claim may have changed how a GPU is shared.
func (p *preparation) recordedBefore(gpu string) bool {
	return slices.ContainsFunc(p.earlier.Sharing, func(s sharingData) bool { return s.GPU == gpu })
}

// partitionsOf are the devices of a claim's MIG instances, by name.
func partitionsOf(d data) map[string]bool {
	all := map[string]bool{}
	for _, made := range d.Partitions {
		all[made.Device] = true
	}
	return all
}

// retract removes from the claim's record the steps that neither this try nor an earlier one did. left are the devices at whose
// placements an instance of the claim may be, by name. The sharing of the first set GPUs was set. refused is why that of the next
// one was not; nil: it was not tried.
func (k *Preparer) retract(p *preparation, left map[string]bool, set int, refused error) error {
	if !p.intended {
		return nil
	}
	if refused != nil && !definite(refused) {
		set++
	}
	var kept data
	for _, made := range p.data.Partitions {
		if left[made.Device] {
			kept.Partitions = append(kept.Partitions, made)
		} else {
			k.own(made.place(), "")
		}
	}
	for i, s := range p.data.Sharing {
		never := i == set && errors.Is(refused, sharing.ErrNotSupported)
		if i < set || p.recordedBefore(s.GPU) && !never {
			kept.Sharing = append(kept.Sharing, s)
		}
	}
	if p.earlier.MPS != nil {
		kept.MPS = p.data.MPS
	}
	p.data = kept
	return k.intend(p)
}

// definite reports whether an error is a definite answer that nothing was changed.
func definite(err error) bool {
	var ret nvml.Return
	if errors.As(err, &ret) {
		return slices.Contains([]nvml.Return{nvml.ERROR_NO_PERMISSION, nvml.ERROR_INVALID_ARGUMENT, nvml.ERROR_NOT_SUPPORTED}, ret)
	}
	return sharing.Refused(err)
}
