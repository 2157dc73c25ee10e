package draplugin

import (
	"context"
	"fmt"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/klog/v2"
	specs "tags.cncf.io/container-device-interface/specs-go"

	"gpufabric.io/drivers/node/claimstate"
)

// UnprepareResourceClaims implements kubeletplugin.DRAPlugin.
func (p *Plugin) UnprepareResourceClaims(ctx context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	leave, err := p.enter()
	if err != nil {
		return nil, err
	}
	defer leave()
	results := make(map[types.UID]error, len(claims))
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, claim := range claims {
		wg.Go(func() {
			start := time.Now()
			err := p.release(ctx, claim.UID, cause{requested: true}, endPatience)
			p.config.Metrics.Observe(unpreparing, "total", start)
			if err != nil {
				err = fmt.Errorf("unprepare claim %s/%s: %w", claim.Namespace, claim.Name, err)
				p.config.Metrics.Errors.WithLabelValues(unpreparing, reasonOf(err)).Inc()
				klog.FromContext(ctx).Error(err, "Claim not unprepared", "uid", claim.UID)
			}
			mu.Lock()
			defer mu.Unlock()
			results[claim.UID] = err
		})
	}
	wg.Wait()
	p.config.Metrics.Claims.Set(float64(p.state.Len()))
	return results, nil
}

// release frees the devices of a claim, or waits for its containers for as long as patience and then returns a *stillUsed.
func (p *Plugin) release(ctx context.Context, uid types.UID, why cause, patience time.Duration) (err error) {
	defer caught(ctx, &err)
	unlock, err := p.locks.Lock(ctx, string(uid))
	if err != nil {
		return err
	}
	defer unlock()
	record, recorded := p.state.Get(uid)
	if !recorded {
		return p.undo(ctx, uid, nil) // a spec, whose record was set aside
	}
	return p.freeWithin(ctx, record, why, patience)
}

// undo undoes a claim whose lock is held. It removes the CDI spec first, so that no container starts with devices that are going
// away, and then returns the error of check, if any. It removes the record last, so that recovery finds a crash in between.
func (p *Plugin) undo(ctx context.Context, uid types.UID, check func() error) error {
	const operation = unpreparing
	step := time.Now()
	if err := p.cdi.Remove(uid); err != nil {
		return err
	}
	step = p.config.Metrics.Observe(operation, "cdi", step)
	if check != nil {
		if err := check(); err != nil {
			return err
		}
	}
	if record, ok := p.state.Get(uid); ok {
		if err := p.unprepareDevices(ctx, record); err != nil {
			return err
		}
		step = p.config.Metrics.Observe(operation, "device", step)
		if err := p.metadata.Remove(uid); err != nil {
			return err
		}
		if err := p.state.Delete(uid); err != nil {
			return err
		}
		p.config.Metrics.Observe(operation, "state", step)
	}
	p.ledger.Release(string(uid))
	p.report.waits.forget(uid)
	p.endRelease(uid)
	return nil
}

// unprepareDevices calls the kind to undo its work for a claim. A panic is a failure of this claim alone, and may be retried.
func (p *Plugin) unprepareDevices(ctx context.Context, record claimstate.Record) (err error) {
	defer caught(ctx, &err)
	return p.config.Preparer.Unprepare(ctx, record)
}

func isEmpty(edits specs.ContainerEdits) bool {
	return len(edits.Env) == 0 && len(edits.DeviceNodes) == 0 && len(edits.NetDevices) == 0 && len(edits.Hooks) == 0 &&
		len(edits.Mounts) == 0 && edits.IntelRdt == nil && len(edits.AdditionalGIDs) == 0
}
