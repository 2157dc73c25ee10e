// Package store keeps state on disk. Every kind has a version, a checksum and one rule for damaged files.
//
// # Formats
//
// A file holds one value, as JSON, with a version and a checksum. Form says where these two are.
//
// The checksum covers bytes, not a value that was decoded and encoded again: a program that knows more or fewer fields still reads
// the file. A new version number means that a field changed its meaning, never that a field was added. A program reads its own
// version and every earlier one.
//
// # Damage
//
// A file that cannot be read is moved into the directory unreadable beside it and reported. It is never overwritten. It is reported
// at every start until a person deletes it. Until then its owner assumes the worst of its content (a claim may hold devices, a GPU
// may have a fault).
package store

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrNewer is wrapped by the error for an intact file of a version that this program does not know.
var ErrNewer = errors.New("written by a newer version of this program")

// Kind is one kind of state.
type Kind[T any] struct {
	// Name is the first word of a file, such as gpufabric-claim. It names the kind in errors.
	Name string
	// Version is the newest version that this program knows.
	Version int
	// Form is the form of its files.
	Form Form
	// VersionOf is the oldest version that can hold a value; nil: Version. An earlier program then reads all that it can.
	VersionOf func(T) int
	// Decode reads the body of a file; nil: as JSON into T.
	Decode func(version int, body []byte) (T, error)
	// Check validates a value that was read from the file of a name; nil: every value is valid.
	Check func(name string, value T) error
}

// Encode encodes a value as a file.
func (k Kind[T]) Encode(value T) ([]byte, error) {
	version := k.Version
	if k.VersionOf != nil {
		version = k.VersionOf(value)
	}
	body, err := json.Marshal(value)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", k.Name, err)
	}
	if k.Form == Headed {
		return append([]byte(k.header(version, body)+"\n"), body...), nil
	}
	data, err := k.Form.seal(version, body)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w", k.Name, err)
	}
	return data, nil
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}

func (k Kind[T]) header(version int, body []byte) string {
	return fmt.Sprintf("%s %d sha256:%s", k.Name, version, digest(body))
}

// Read decodes the file of a name. Its error says what is wrong with the bytes.
func (k Kind[T]) Read(name string, data []byte) (value T, err error) {
	open := k.Form.open
	if k.Form == Headed {
		open = k.open
	}
	version, body, err := open(data)
	if err != nil {
		return value, err
	}
	if version > k.Version {
		return value, fmt.Errorf("version %d, known are 1 to %d: %w", version, k.Version, ErrNewer)
	}
	if k.Decode != nil {
		value, err = k.Decode(version, body)
	} else {
		err = json.Unmarshal(body, &value)
	}
	if err != nil {
		return value, fmt.Errorf("decode body: %w", err)
	}
	if k.Check != nil {
		err = k.Check(name, value)
	}
	return value, err
}

// open reads a file with a header.
func (k Kind[T]) open(data []byte) (version int, body []byte, err error) {
	line, body, found := bytes.Cut(data, []byte("\n"))
	if !found {
		return 0, nil, fmt.Errorf("no header line in %d bytes", len(data))
	}
	fields := strings.Split(string(line), " ")
	if len(fields) != 3 || fields[0] != k.Name {
		return 0, nil, fmt.Errorf("header %.80q is not %q, a version and a checksum", line, k.Name)
	}
	version, err = strconv.Atoi(fields[1])
	if err != nil || version < 1 {
		return 0, nil, fmt.Errorf("version %.20q is not a positive number", fields[1])
	}
	// Layouts of RDMA units had a checksum without the newline at the end.
	if text := string(line); text != k.header(version, body) && text != k.header(version, bytes.TrimSuffix(body, []byte("\n"))) {
		return 0, nil, fmt.Errorf("checksum %.80q does not match the %d bytes that follow", fields[2], len(body))
	}
	return version, body, nil
}
