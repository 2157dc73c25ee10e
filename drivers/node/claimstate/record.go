// Package claimstate keeps what a node plugin knows of its prepared claims on disk: one file per claim, written whole, with a
// version and a checksum over the bytes as they lie there.
//
// A file is one header line and a JSON body:
//
//	gpufabric-claim 1 sha256:<hex of the body's bytes>
//	{"uid": ...}
//
// The checksum covers bytes, not a re-marshalled struct, so a program that knows more or fewer fields than the writer reads the
// file all the same. A new version number means that the meaning of a field changed, never that a field was added.
//
// # Upgrades and downgrades
//
// A program reads its own version and every one before. It writes each record in the oldest version that can say what the record
// says, so that after a downgrade the program before reads all but those that say something new; these it sets aside and names.
//
//   - Version 1: the fields of Record without DataVersion.
//   - Version 2: Data means what DataVersion says. Written for records with a DataVersion above 0 alone.
package claimstate

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/apimachinery/pkg/types"
)

// Version is the newest version that this program reads and writes.
const Version = 2

const magic = "gpufabric-claim"

// Phase says how far a claim's preparation came.
type Phase string

// The phases of a claim.
const (
	// Preparing is written before anything on the node changes, by kinds whose preparation has effects that must be found again
	// after a crash (a MIG device, a node label).
	Preparing Phase = "Preparing"
	// Prepared is written when every effect but the CDI spec is there.
	Prepared Phase = "Prepared"
)

// Record is what is known of one claim.
type Record struct {
	UID       types.UID `json:"uid"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Phase     Phase     `json:"phase"`
	// BootID is the boot in which the claim was prepared (/proc/sys/kernel/random/boot_id): after another boot the devices must be
	// made anew.
	BootID string `json:"bootID,omitempty"`
	// Devices are the allocated devices as the kubelet was told of them.
	Devices []Device `json:"devices,omitempty"`
	// Data is the device kind's own.
	Data json.RawMessage `json:"data,omitempty"`
	// DataVersion is raised by a kind when a field of its data changes its meaning. A kind must refuse data of a version that it does
	// not know.
	DataVersion int `json:"dataVersion,omitempty"`
}

// version is the oldest one that can say what the record says.
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
	// ShareID is set for a share of a device that several claims hold.
	ShareID types.UID `json:"shareID,omitempty"`
	// ConsumedCapacity is what the claim has of a device that several claims hold, as quantities. Records of before it was kept lack it.
	ConsumedCapacity map[resourceapi.QualifiedName]resource.Quantity `json:"consumedCapacity,omitempty"`
	// AdminAccess marks a device that is looked at, not held.
	AdminAccess bool `json:"adminAccess,omitempty"`
	// CDIDeviceIDs are qualified CDI names ("vendor/class=name").
	CDIDeviceIDs []string `json:"cdiDeviceIDs,omitempty"`
}

// encode renders a record as a file.
func encode(record Record) ([]byte, error) {
	body, err := json.Marshal(record)
	if err != nil {
		return nil, fmt.Errorf("encode claim %s/%s: %w", record.Namespace, record.Name, err)
	}
	body = append(body, '\n')
	return append([]byte(header(record.version(), body)), body...), nil
}

func header(version int, body []byte) string {
	sum := sha256.Sum256(body)
	return fmt.Sprintf("%s %d sha256:%s\n", magic, version, hex.EncodeToString(sum[:]))
}

// errNewer marks a file that is sound but of a version that this program does not know.
var errNewer = errors.New("written by a newer version of this program")

// decode reads a file. Its errors say what is wrong with the bytes.
func decode(data []byte) (Record, error) {
	line, body, found := bytes.Cut(data, []byte("\n"))
	if !found {
		return Record{}, fmt.Errorf("no header line in %d bytes", len(data))
	}
	fields := strings.Split(string(line), " ")
	if len(fields) != 3 || fields[0] != magic {
		return Record{}, fmt.Errorf("header %.80q is not %q, a version and a checksum", line, magic)
	}
	version, err := strconv.Atoi(fields[1])
	if err != nil || version < 1 {
		return Record{}, fmt.Errorf("version %.20q is not a positive number", fields[1])
	}
	if want := strings.TrimSuffix(header(version, body), "\n"); string(line) != want {
		return Record{}, fmt.Errorf("checksum %.80q does not match the %d bytes that follow", fields[2], len(body))
	}
	if version > Version {
		return Record{}, fmt.Errorf("version %d, known are 1 to %d: %w", version, Version, errNewer)
	}
	var record Record
	if err := json.Unmarshal(body, &record); err != nil {
		return Record{}, fmt.Errorf("decode body: %w", err)
	}
	if record.UID == "" {
		return Record{}, errors.New("body has no uid")
	}
	return record, nil
}
