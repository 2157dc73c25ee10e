package draplugin

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/claimstate"
	"gpufabric.io/drivers/node/orders"
)

const (
	// releaseSocket is where a plugin takes orders to release claims, in its state directory, which only root can enter.
	releaseSocket = "release.sock"
	// releaseTimeout limits one order.
	releaseTimeout = 30 * time.Second
)

// The order, and its arguments: a claim's UID or NAMESPACE/NAME, and whether to free its devices in spite of containers.
const (
	orderRelease  = "release"
	argumentClaim = "claim"
	argumentForce = "force"
)

// takeOrders serves releaseSocket until ctx ends. Without the socket the plugin does all else.
func (p *Plugin) takeOrders(ctx context.Context) {
	path := filepath.Join(p.config.Node.StateDir, releaseSocket)
	orders.Serve(ctx, path, map[string]orders.Order{orderRelease: p.executeRelease}, func(err error) {
		klog.FromContext(ctx).Error(err, "gpufabric release is not served")
	})
}

// executeRelease releases a claim.
func (p *Plugin) executeRelease(ctx context.Context, arguments url.Values, report orders.Report) error {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	record, err := p.recordOf(arguments.Get(argumentClaim))
	if err != nil {
		return err
	}
	r := p.releaseOf(record.UID)
	if r == nil {
		gone, err := p.gone(ctx, record)
		if err != nil || !gone {
			return fmt.Errorf("claim %s/%s of %s is allocated to devices of this node (%w): delete its pods first", record.Namespace,
				record.Name, p.config.Driver, errors.Join(errors.New("it is not being released"), err))
		}
		r = &release{cause: cause{gone: true}}
	}
	why := r.cause
	why.forced = arguments.Has(argumentForce)
	if err := p.release(ctx, record.UID, why, 0); err != nil {
		return err
	}
	if why.forced {
		p.report.node("DeviceReleaseForced", fmt.Sprintf("claim %s/%s (UID %s) was released by an administrator, in spite of %v",
			record.Namespace, record.Name, record.UID, r.users))
	}
	report("released: claim %s/%s of %s", record.Namespace, record.Name, p.config.Driver)
	return nil
}

// recordOf returns the record of a claim by its UID or NAMESPACE/NAME.
func (p *Plugin) recordOf(claim string) (claimstate.Record, error) {
	records := slices.DeleteFunc(p.state.List(), func(r claimstate.Record) bool {
		return string(r.UID) != claim && r.Namespace+"/"+r.Name != claim
	})
	switch len(records) {
	case 0:
		return claimstate.Record{}, fmt.Errorf("%s does not have a claim %.100q", p.config.Driver, claim)
	case 1:
		return records[0], nil
	}
	var uids []string // one was made again under the other's name
	for _, r := range records {
		uids = append(uids, string(r.UID))
	}
	return claimstate.Record{}, fmt.Errorf("%s has %d claims %.100q: give the UID of one of them (%s)", p.config.Driver, len(records), claim,
		strings.Join(uids, ", "))
}
