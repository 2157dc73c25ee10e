// Package claimstate keeps a node plugin's records of its prepared claims on disk, one file per claim (see package store).
package claimstate

import (
	"encoding/json"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/node/store"
)

// Phase is the progress of a claim's preparation.
type Phase string

// The phases of a claim.
const (
	// Preparing is written before anything on the node changes. It is for kinds whose effects must be found again after a crash (a MIG
	// device, a node label).
	Preparing Phase = "Preparing"
	// Prepared is written when every effect is in place except the CDI spec.
	Prepared Phase = "Prepared"
)

// Record is the stored state of one claim.
type Record struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Phase     Phase     `json:"phase"`
	// BootID is the boot in which the claim was prepared (/proc/sys/kernel/random/boot_id). After a reboot the devices must be made
	// again.
	BootID string `json:"bootID,omitempty"`
	// Devices are the allocated devices as the kubelet got them.
	Devices []Device `json:"devices,omitempty"`
	// Pods are those for which the claim was prepared. The kubelet does not report pods that come to a prepared claim later.
	Pods []Pod `json:"pods,omitempty"`
	// Data belongs to the device kind.
	Data json.RawMessage `json:"data,omitempty"`
}

// Device is one allocated device of a claim.
type Device struct {
	// Requests are the claim's requests that the device serves, as in the allocation result.
	Requests []string `json:"requests,omitempty"`
	Pool     string   `json:"pool"`
	Device   string   `json:"device"`
	// ShareID is set for a share of a device that several claims use.
	ShareID types.UID `json:"shareID,omitempty"`
	// ConsumedCapacity is how much the claim has of a device that several claims use, as quantities.
	ConsumedCapacity map[resourceapi.QualifiedName]resource.Quantity `json:"consumedCapacity,omitempty"`
	// AdminAccess marks a device that the claim observes without holding it.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// CDIDeviceIDs are qualified CDI names ("vendor/class=name").
	CDIDeviceIDs []string `json:"cdiDeviceIDs,omitempty"`
}

// Pod is a pod that may use a claim.
type Pod struct {
	UID  types.UID `json:"uid"`
	Name string    `json:"name"`
	// Cgroup is the pod's cgroup, as a path below the root of the node's cgroups. It is empty where none was found.
	Cgroup string `json:"cgroup,omitempty"`
}

// kind is how records are kept.
func kind() store.Format[Record] {
	return store.Format[Record]{Name: "gpufabric-claim", Version: 1, Check: check}
}

// check validates a record that was read from a file.
func check(name string, record Record) error {
	if record.UID == "" {
		return errors.New("body has no uid")
	}
	if string(record.UID) != name {
		return fmt.Errorf("has claim %s, but the name of another claim", record.UID)
	}
	return nil
}

// Decode reads a driver's own data from a claim's record. A record without data gives T's zero value. A field that changes its meaning
// gets a new name.
func Decode[T any](record Record) (T, error) {
	var data T
	if len(record.Data) == 0 {
		return data, nil
	}
	if err := json.Unmarshal(record.Data, &data); err != nil {
		return data, fmt.Errorf("claim %s/%s: its record's data: %w", record.Namespace, record.Name, err)
	}
	return data, nil
}
