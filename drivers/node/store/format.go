// Package store keeps state on disk. Every kind has a version, a checksum and one rule for damaged files.
//
// # Format
//
// A file is one JSON object, whatever the kind:
//
//	{"kind":"gpufabric-claim","version":1,"sha256":"<hex>","value":{...}}
//
// The checksum covers the kind, the version and the bytes of the value, not a value that was decoded and encoded again: a program that
// has more or fewer fields still reads the file. A new version number means that a field changed its meaning, never that a field was
// added.
//
// # Damage
//
// A file that cannot be read is moved into the directory unreadable beside it and reported. It is never overwritten. It is reported
// at every start until a person deletes it. Until then its owner assumes the worst of its content (a claim may have devices, a GPU
// may have a fault).
package store

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
)

// ErrNewer is wrapped by the error for an intact file of a version that is newer than this program.
var ErrNewer = errors.New("written by a newer version of this program")

// Format is one kind of state.
type Format[T any] struct {
	// Name is the kind in a file, such as gpufabric-claim, and in errors.
	Name string
	// Version is the version that this program writes, and the newest that it reads.
	Version int
	// Check validates a value that was read from the file of a name; nil: every value is valid.
	Check func(name string, value T) error
}

// frame is a file.
type frame struct {
	Kind    string          `json:"kind"`
	Version int             `json:"version"`
	Sum     string          `json:"sha256"`
	Value   json.RawMessage `json:"value"`
}

// digest is the checksum of a file.
func (f frame) digest() string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%s %d %s", f.Kind, f.Version, f.Value))
	return hex.EncodeToString(sum[:])
}

// Encode encodes a value as a file.
func (k Format[T]) Encode(value T) ([]byte, error) {
	body, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", k.Name, err)
	}
	f := frame{Kind: k.Name, Version: k.Version, Value: body}
	f.Sum = f.digest()
	return json.Marshal(f)
}

// Read decodes the file of a name. Its error describes the fault of the bytes.
func (k Format[T]) Read(name string, data []byte) (value T, err error) {
	var f frame
	if err := json.Unmarshal(data, &f); err != nil {
		return value, fmt.Errorf("the %d bytes are not one JSON object: %w", len(data), err)
	}
	switch {
	case f.Kind != k.Name:
		return value, fmt.Errorf("its kind is %.80q, not %q", f.Kind, k.Name)
	case f.Sum != f.digest():
		return value, fmt.Errorf("checksum %.80q does not match its kind, version and value", f.Sum)
	case f.Version < 1:
		return value, fmt.Errorf("version %d is not a positive number", f.Version)
	case f.Version > k.Version:
		return value, fmt.Errorf("version %d, supported are 1 to %d: %w", f.Version, k.Version, ErrNewer)
	}
	if err := json.Unmarshal(f.Value, &value); err != nil {
		return value, fmt.Errorf("decode the value: %w", err)
	}
	if k.Check != nil {
		err = k.Check(name, value)
	}
	return value, err
}
