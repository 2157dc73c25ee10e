// Package claimstate keeps what a node plugin knows of its prepared claims on disk, one file per claim (see package store).
//
// # Upgrades and downgrades
//
// A program reads its own version and every earlier one. It writes each record in the oldest version that can hold it. After a
// downgrade the earlier program then reads every record without new content; the others it sets aside and names.
//
// - Version 1: the fields of Record without DataVersion.
// - Version 2: Data means what DataVersion says. Only records with a DataVersion above 0 are written in it.
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

// Version is the newest version that this program reads and writes.
const Version = 2

// Phase says how far the preparation of a claim has come.
type Phase string

// The phases of a claim.
const (
	// Preparing is written before anything on the node changes. It is for kinds whose effects must be found again after a crash (a MIG
	// device, a node label).
	Preparing Phase = "Preparing"
	// Prepared is written when every effect is in place except the CDI spec.
	Prepared Phase = "Prepared"
)

// Record is what is known of one claim.
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
	// Data belongs to the device kind.
	Data json.RawMessage `json:"data,omitempty"`
	// DataVersion is raised by a kind when a field of its data changes its meaning. A kind must refuse data of a version that it does
	// not know.
	DataVersion int `json:"dataVersion,omitempty"`
}

// version is the oldest version that can hold the record.
func (r Record) version() int {
	if r.DataVersion > 0 {
		return 2
	}
	return 1
}

// Device is one allocated device of a claim.
type Device struct {
	// Requests are the claim's requests that the device serves, as in the allocation result.
	Requests []string `json:"requests,omitempty"`
	Pool     string   `json:"pool"`
	Device   string   `json:"device"`
	// ShareID is set for a share of a device that several claims use.
	ShareID types.UID `json:"shareID,omitempty"`
	// ConsumedCapacity is how much the claim has of a device that several claims use, as quantities. Older records lack it.
	ConsumedCapacity map[resourceapi.QualifiedName]resource.Quantity `json:"consumedCapacity,omitempty"`
	// AdminAccess marks a device that the claim observes without holding it.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// CDIDeviceIDs are qualified CDI names ("vendor/class=name").
	CDIDeviceIDs []string `json:"cdiDeviceIDs,omitempty"`
}

// kind is how records are kept.
func kind() store.Kind[Record] {
	return store.Kind[Record]{Name: "gpufabric-claim", Version: Version, VersionOf: Record.version, Check: check}
}

// check says what is wrong with a record that was read from a file.
func check(name string, record Record) error {
	if record.UID == "" {
		return errors.New("body has no uid")
	}
	if string(record.UID) != name {
		return fmt.Errorf("holds claim %s, but its name is another claim's", record.UID)
	}
	return nil
}

// Decode reads a driver's own data from a claim's record, up to a version of its own. A record without data gives T's zero value.
func Decode[T any](record Record, version int) (T, error) {
	var data T
	if record.DataVersion > version {
		return data, fmt.Errorf("claim %s/%s: its record's data is of version %d, known are 0 to %d: a newer version of this program wrote it; "+
			"run that one again, or delete the claim's pod there first", record.Namespace, record.Name, record.DataVersion, version)
	}
	if len(record.Data) == 0 {
		return data, nil
	}
	if err := json.Unmarshal(record.Data, &data); err != nil {
		return data, fmt.Errorf("claim %s/%s: its record's data: %w", record.Namespace, record.Name, err)
	}
	return data, nil
}
