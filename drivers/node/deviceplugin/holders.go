package deviceplugin

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/atomicfile"
	"gpufabric.io/drivers/node/occupancy"
)

// checkpointFile is the kubelet's record of the devices that pods have, in its device plugin directory
// (pkg/kubelet/cm/devicemanager/checkpoint).
const checkpointFile = "kubelet_internal_checkpoint"

// checkpoint is the part of checkpointFile that names the pods with devices. DeviceIDs are by NUMA node.
type checkpoint struct {
	Data struct {
		PodDeviceEntries []struct {
			PodUID       types.UID
			ResourceName string
			DeviceIDs    map[string][]string
		}
	}
}

// Holders follows which pods have which devices, and had them until their last container has ended.
//
// The kubelet forgets a pod that was deleted by force while its containers still run (GetActivePods, which its device manager calls before
// each allocation), and then allocates its devices again. An allocation does not name its pod, but the kubelet writes the pod's UID to its
// checkpoint right after it. Holders stores these UIDs, and looks for the pods among the node's cgroups. Without a checkpoint, or where
// the cgroups do not show pods, it has no holders, and the kubelet's allocation stands.
type Holders struct {
	// Cgroups are the node's.
	Cgroups *occupancy.Cgroups
	// File stores the pods across restarts of the role; empty: they are not stored.
	File string
	// Key returns the name by which a device is followed; empty: it is not. A device may be part of several resources.
	Key func(resource, id string) string

	checkpoint string

	mu sync.Mutex
	// pods are the pods that the kubelet gave a device, by the device's key, until they are known to have ended.
	pods map[string][]types.UID
	// current are the holders in the kubelet's last checkpoint.
	current map[string][]types.UID
	seen    identity // of that checkpoint
	opened  bool
	unread  error  // of File, which is tried again
	trouble string // the last logged error
}

// NewHolders makes a Holders for the kubelet whose root directory is kubeletRoot.
func NewHolders(kubeletRoot string, cgroups *occupancy.Cgroups, file string, key func(resource, id string) string) *Holders {
	return &Holders{Cgroups: cgroups, File: file, Key: key, checkpoint: filepath.Join(kubeletRoot, "device-plugins", checkpointFile)}
}

// User is a pod with processes that may use a device.
type User struct {
	Pod types.UID
	// Forgotten: the kubelet no longer counts the device as the pod's.
	Forgotten bool
	occupancy.Sight
}

func (u User) String() string { return fmt.Sprintf("%s of the pod with UID %s", u.Sight, u.Pod) }

// Users returns the pods with processes that may use a device, by the device's key. With an error there may be more: File cannot be read.
func (h *Holders) Users(ctx context.Context, key string) ([]User, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.update(ctx)
	return h.users(ctx, key), h.unread
}

// Forgotten returns the pods that have processes and that the kubelet no longer counts, by the key of the device that they may use.
func (h *Holders) Forgotten(ctx context.Context) map[string][]User {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.update(ctx)
	found := map[string][]User{}
	for key := range h.pods {
		for _, user := range h.users(ctx, key) {
			if user.Forgotten {
				found[key] = append(found[key], user)
			}
		}
	}
	return found
}

func (h *Holders) users(ctx context.Context, key string) []User {
	var users []User
	for _, pod := range h.pods[key] {
		if sight, _ := h.Cgroups.Look(ctx, pod); sight.Running {
			users = append(users, User{Pod: pod, Forgotten: !slices.Contains(h.current[key], pod), Sight: sight})
		}
	}
	return users
}

// update reads the kubelet's checkpoint, and drops pods that have ended. A checkpoint that cannot be read leaves all as it is.
func (h *Holders) update(ctx context.Context) {
	err := h.load()
	if err == nil {
		err = h.merge(ctx)
	}
	trouble := ""
	if err != nil {
		trouble = err.Error()
	}
	if trouble != "" && trouble != h.trouble {
		klog.FromContext(ctx).Error(err, "Could not determine all pods that have devices of device plugins")
	}
	h.trouble = trouble
}

// load reads File once. A damaged one is set aside.
func (h *Holders) load() error {
	if h.opened || h.File == "" {
		return nil
	}
	raw, err := os.ReadFile(h.File)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		h.unread = fmt.Errorf("read the pods that had devices before the role's restart: %w", err)
		return h.unread
	}
	h.opened, h.unread = true, nil
	if err != nil {
		return nil
	}
	var pods map[string][]types.UID
	if err := json.Unmarshal(raw, &pods); err != nil {
		aside := h.File + ".unreadable"
		return errors.Join(fmt.Errorf("read the pods that had devices before the role's restart: %w; set aside as %s: delete it when the pods "+
			"that it names have ended", err, aside), os.Rename(h.File, aside))
	}
	h.pods = pods
	return nil
}

// merge adds the pods of the kubelet's checkpoint, and drops those that are not in it and have ended.
func (h *Holders) merge(ctx context.Context) error {
	if err := h.read(); err != nil {
		return err
	}
	pods := map[string][]types.UID{}
	for key, uids := range h.current {
		pods[key] = slices.Clone(uids)
	}
	if h.current != nil {
		for key, uids := range h.pods {
			for _, uid := range uids {
				if !slices.Contains(pods[key], uid) && h.mayRun(ctx, uid) {
					pods[key] = append(pods[key], uid)
				}
			}
		}
	}
	h.pods = pods
	return h.store(pods)
}

// read sets current to the pods of the kubelet's checkpoint, if that was written since the last call. A kubelet without a checkpoint
// allocates anew for the pods that run, whose devices must not be refused to them: current is then nil.
func (h *Holders) read() error {
	now, err := stamp(h.checkpoint)
	if errors.Is(err, fs.ErrNotExist) {
		h.current, h.seen = nil, identity{}
		if _, err := os.Stat(filepath.Dir(h.checkpoint)); errors.Is(err, fs.ErrNotExist) {
			h.current = map[string][]types.UID{} // the role no longer has the kubelet's directory: known holders stay until their pods end
		}
		return nil
	}
	if err == nil && now == h.seen {
		return nil
	}
	var raw []byte
	if err == nil {
		raw, err = os.ReadFile(h.checkpoint)
	}
	var read checkpoint
	if err == nil {
		err = json.Unmarshal(raw, &read)
	}
	if err != nil {
		return fmt.Errorf("read the kubelet's record of devices: %w", err)
	}
	current := map[string][]types.UID{}
	for _, entry := range read.Data.PodDeviceEntries {
		for _, ids := range entry.DeviceIDs {
			for _, id := range ids {
				if key := h.Key(entry.ResourceName, id); key != "" && !slices.Contains(current[key], entry.PodUID) {
					current[key] = append(current[key], entry.PodUID)
				}
			}
		}
	}
	h.current, h.seen = current, now
	return nil
}

// mayRun reports whether a pod has processes, or whether that is unknown just now.
func (h *Holders) mayRun(ctx context.Context, pod types.UID) bool {
	sight, err := h.Cgroups.Look(ctx, pod)
	return sight.Running || err != nil
}

// store writes File where it has other pods.
func (h *Holders) store(pods map[string][]types.UID) error {
	if h.File == "" {
		return nil
	}
	for key := range pods {
		slices.Sort(pods[key])
	}
	next, err := json.Marshal(pods)
	if err != nil {
		return fmt.Errorf("encode the pods that have devices: %w", err)
	}
	before, err := os.ReadFile(h.File)
	if err == nil && string(before) == string(next) || errors.Is(err, fs.ErrNotExist) && len(pods) == 0 {
		return nil
	}
	if err := (atomicfile.Writer{}).Write(h.File, next, 0o600); err != nil {
		return fmt.Errorf("store the pods that have devices: %w", err)
	}
	return nil
}

// describe lists users, for people.
func describe(users []User) string {
	names := make([]string, 0, len(users))
	for _, user := range users {
		names = append(names, user.String())
	}
	slices.SortFunc(names, cmp.Compare)
	return strings.Join(names, "; ")
}
