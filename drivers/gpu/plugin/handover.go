package plugin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/gpu/claims"
	"gpufabric.io/drivers/gpu/devices"
	"gpufabric.io/drivers/gpu/extendedresource"
	"gpufabric.io/drivers/gpu/handover"
	"gpufabric.io/drivers/gpu/inventory"
	"gpufabric.io/drivers/node/deviceplugin"
	"gpufabric.io/drivers/node/filewatch"
	"gpufabric.io/drivers/node/ledger"
	"gpufabric.io/drivers/node/observed"
	"gpufabric.io/drivers/node/occupancy"
)

// retryHold is how long to wait before trying again to take a GPU that claims still hold: the ledger notifies only its waiters.
const retryHold = time.Second

// handovers hands GPUs over to the device plugins that requested them. The order is: publish the GPU's taint; wait until no claim
// holds any form of it; hold it in the ledger for them; notify them.
type handovers struct {
	directory handover.Directory // empty: there are no device plugins
	files     *filewatch.Watcher
	allowed   []string // the device plugins that may have GPUs
	wanted    []string // the GPUs of --device-plugin
	kind      *claims.Preparer
	ledger    *ledger.Ledger
	taints    publishedTaints
	events    nodeEvents
	// holders are the pods that have GPUs of device plugins, by the GPU's UUID.
	holders *deviceplugin.Holders

	// requests are the device plugins that requested GPUs, by the GPU's UUID. A map is never changed.
	requests observed.Value[map[string]string]

	// Only the goroutine of Run uses these. held are the GPUs that the ledger holds for their owners.
	held map[string]bool
	// kept are the GPUs whose requests were withdrawn, and that pods of the device plugin still use.
	kept bool
	// waiting is the last report about GPUs in use by device plugins that are no longer installed.
	waiting string
	// trouble is the last reported problem of the directory.
	trouble string
	// seen are the requests whose taints were seen published, and seenOn the pool with which they were seen. Until either changes they
	// need not be looked up at each retry.
	seen   map[string]string
	seenOn *devices.Pool
}

func newHandovers(o Options, kind *claims.Preparer, holders *ledger.Ledger, taints publishedTaints, events nodeEvents) *handovers {
	return &handovers{directory: handover.Directory(o.HandoverDir), files: o.Files, allowed: o.HandoverTo,
		wanted: o.DevicePlugin, kind: kind, ledger: holders, taints: taints, events: events, held: map[string]bool{},
		holders: deviceplugin.NewHolders(o.KubeletRoot, &occupancy.Cgroups{Root: o.Cgroups().Path}, filepath.Join(o.StateDir, holdersFile),
			func(_, id string) string { return gpuOf(id) })}
}

// holdersFile is the file of the pods that have GPUs of device plugins, in the state directory.
const holdersFile = "device-plugin-pods.json"

// gpuOf returns the UUID in a device plugin's ID of a GPU or of a share of it ("GPU-<UUID>-3"); empty: the ID has none.
func gpuOf(id string) string {
	const length = len("GPU-00000000-0000-0000-0000-000000000000")
	if uuid := id[:min(length, len(id))]; handover.IsGPU(uuid) {
		return uuid
	}
	return ""
}

// withdrawn is the owner of a GPU whose request was withdrawn before this run.
const withdrawn = "withdrawn"

// begin requests the GPUs of --device-plugin and reads the existing requests.
func (h *handovers) begin(ctx context.Context) error {
	if h.directory == "" {
		return nil
	}
	if err := h.request(); err != nil {
		return err
	}
	return h.read(ctx)
}

// read reads the existing requests. A GPU whose request was withdrawn counts as requested while pods of the device plugin use it.
func (h *handovers) read(ctx context.Context) error {
	requests, err := h.directory.Requests()
	if err != nil {
		return err
	}
	given, err := h.directory.Confirmed()
	if err != nil {
		return err
	}
	h.kept = false
	for uuid := range given {
		if _, requested := requests[uuid]; !requested && h.runs(ctx, uuid) {
			if requests == nil {
				requests = map[string]string{}
			}
			requests[uuid] = cmp.Or(h.requests.Now()[uuid], withdrawn)
			h.kept = true
		}
	}
	if !maps.Equal(requests, h.requests.Now()) {
		h.requests.Set(requests)
	}
	return nil
}

// addHandoverTaints adds the taint of every requested GPU to all its forms.
func addHandoverTaints(into map[string][]resourceapi.DeviceTaint, requests map[string]string, all []*devices.Device) {
	for _, d := range all {
		if owner, ok := requests[d.GPU.UUID]; ok {
			into[d.Name()] = append(into[d.Name()], resourceapi.DeviceTaint{Key: handover.Taint, Value: owner,
				Effect: resourceapi.DeviceTaintEffectNoSchedule})
		}
	}
}

// Run runs the handover until ctx ends. While the directory cannot be read or written, every GPU stays with its owner, and the role
// goes on with its claims: the last requests remain valid.
func (h *handovers) Run(ctx context.Context) error {
	if h.directory == "" {
		return nil
	}
	changes, err := h.directory.Watch(ctx, h.files)
	if err != nil {
		return err
	}
	for {
		again, err := h.step(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			klog.FromContext(ctx).Error(err, "GPUs not handed to a device plugin yet")
			again = true
		}
		var timer <-chan time.Time
		if again {
			timer = time.After(retryHold)
		}
		select {
		case <-changes:
		case <-timer:
		case <-ctx.Done():
			return nil
		}
	}
}

// step brings the handover up to date with the directory. again: some GPU has to wait.
func (h *handovers) step(ctx context.Context) (again bool, err error) {
	inUse, err := h.takeBack(ctx)
	if err == nil {
		err = h.request()
	}
	if err == nil {
		err = h.read(ctx)
	}
	if err != nil {
		if now := err.Error(); now != h.trouble {
			h.trouble = now
			h.events.Report("HandoverUnreadable", now+": until the handover directory can be used again no GPU changes hands between DRA and a "+
				"device plugin; claims are prepared as before")
		}
		return true, err
	}
	h.trouble = ""
	again, err = h.settle(ctx)
	return again || inUse || h.kept, err
}

// takeBack withdraws requests of device plugins for GPUs that they may no longer have, for each GPU once no process runs on it. inUse
// reports that a process runs on one of them.
func (h *handovers) takeBack(ctx context.Context) (inUse bool, err error) {
	standing, err := h.directory.Requests()
	if err != nil {
		return false, err
	}
	kept := map[string][]string{} // by owner
	returned := map[string]bool{} // owners
	var waiting strings.Builder
	for _, uuid := range slices.Sorted(maps.Keys(standing)) {
		owner := standing[uuid]
		switch {
		case h.mayHave(owner, uuid):
			kept[owner] = append(kept[owner], uuid)
		case h.runs(ctx, uuid):
			kept[owner] = append(kept[owner], uuid)
			fmt.Fprintf(&waiting, "%s has %s, on which processes run; ", owner, uuid)
		default:
			klog.FromContext(ctx).Info("Taking a GPU back from a device plugin that may no longer have it", "gpu", uuid, "plugin", owner)
			returned[owner] = true
		}
	}
	for _, owner := range slices.Sorted(maps.Keys(returned)) {
		if err := h.directory.Request(owner, kept[owner]...); err != nil {
			return false, err
		}
	}
	if now := waiting.String(); now != h.waiting {
		h.waiting = now
		if now != "" {
			h.events.Report("HandoverStillInUse", now+
				"no device plugin is to have them any more: DRA gives these GPUs to nobody until the processes end")
		}
	}
	return waiting.Len() > 0, nil
}

// runs reports whether a process runs on a GPU, or a pod of a device plugin may use it, or whether that is unknown. A process that has
// the GPU open without a CUDA context does not show in NVML.
func (h *handovers) runs(ctx context.Context, uuid string) bool {
	if users, err := h.holders.Users(ctx, uuid); len(users) > 0 || err != nil {
		return true
	}
	g := h.kind.Hardware().Node.ByUUID(uuid)
	if g == nil {
		return false // it is no longer on this node
	}
	processes, ret := g.Handle.GetComputeRunningProcesses()
	return ret != nvml.ERROR_NOT_SUPPORTED && (ret != nvml.SUCCESS || len(processes) > 0)
}

// settle confirms every GPU that can be confirmed, and takes back those that were returned. again: some GPU has to wait.
func (h *handovers) settle(ctx context.Context) (again bool, err error) {
	owners := h.requests.Now()
	for uuid := range h.held {
		if _, ok := owners[uuid]; !ok {
			h.ledger.Release(holderID(uuid))
			delete(h.held, uuid)
		}
	}
	if pool := h.kind.Hardware().Pool; pool != h.seenOn || !maps.Equal(owners, h.seen) {
		if len(owners) > 0 {
			requested := func(d *devices.Device) bool { return owners[d.GPU.UUID] != "" }
			if err := h.taints.await(ctx, handover.Taint, requested); err != nil {
				return true, err
			}
		}
		h.seen, h.seenOn = owners, pool
	}
	var ready []string
	for _, uuid := range slices.Sorted(maps.Keys(owners)) {
		g := h.kind.Hardware().Node.ByUUID(uuid)
		if g == nil {
			h.events.Report("HandoverUnknownGPU", fmt.Sprintf("%s asks for %s, which is not on this node: it is lost, or was taken out; "+
				"where it is gone for good, remove %s.requested in %s", owners[uuid], uuid, uuid, h.directory))
			continue
		}
		if err := h.take(g, owners[uuid]); err != nil {
			var conflict *ledger.ConflictError
			if !errors.As(err, &conflict) {
				return true, err
			}
			klog.FromContext(ctx).Info("A device plugin waits for a GPU", "gpu", uuid, "plugin", owners[uuid], "reason", err.Error())
			again = true
			continue
		}
		h.held[uuid] = true
		ready = append(ready, uuid)
	}
	return again, h.directory.Confirm(ready...)
}

func holderID(uuid string) string { return "handover/" + uuid }

// take holds every form of a GPU for a device plugin, or returns the claim that has it.
func (h *handovers) take(g *inventory.GPU, owner string) error {
	return h.ledger.TryAcquire(ledger.Owner{ID: holderID(g.UUID), Name: "the device plugin " + owner}, reservationsOf(g)...)
}

// request requests the GPUs of --device-plugin, except those of device plugins that may no longer have them: takeBack returns these
// first. Requests of an earlier run stay. Pods may have a GPU that does not answer now, or that the flag no longer names; takeBack
// is notified when it is free.
func (h *handovers) request() error {
	standing, err := h.directory.Requests()
	if err != nil {
		return fmt.Errorf("--device-plugin: %w", err)
	}
	uuids := slices.DeleteFunc(uuidsOf(extendedresource.Select(h.kind.Hardware().Node, h.wanted)), func(uuid string) bool {
		owner, requested := standing[uuid]
		return requested && !h.mayHave(owner, uuid)
	})
	for uuid, owner := range standing {
		if owner == extendedresource.Owner {
			uuids = append(uuids, uuid)
		}
	}
	if err := h.directory.Request(extendedresource.Owner, uuids...); err != nil {
		return fmt.Errorf("--device-plugin: %w", err)
	}
	return nil
}

// mayHave reports whether a device plugin may have a GPU. One of --device-plugin may even if it cannot be seen now.
func (h *handovers) mayHave(owner, uuid string) bool {
	if owner == extendedresource.Owner {
		return slices.Contains(h.wanted, "all") || slices.Contains(h.wanted, uuid)
	}
	return slices.Contains(h.allowed, owner)
}
