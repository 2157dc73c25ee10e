package store

import (
	"bytes"
	"encoding/json"
	"fmt"
	"regexp"
	"strconv"
)

// Form is how a file holds a version and a checksum beside its value, so that the program of the earlier version can read what this
// one writes.
type Form int

const (
	// Headed has a header line before the value. A program from before this form cannot read it.
	//
	//	gpufabric-claim 1 sha256:<hex of the bytes that follow the line>
	//	{"uid": ...}
	Headed Form = iota
	// Object is for a value that encodes as a JSON object without these two fields.
	//
	//	{"version":1, ..., "sha256":"<hex of the bytes before this field>"}
	Object
	// Objects is for a value that encodes as a JSON array of objects. A program from before it reads one more object, with none of its
	// fields set. A decoder must skip such an object, since that program writes it back.
	//
	//	[..., {"version":1,"sha256":"<hex of the bytes before this field>"}]
	Objects
	// Strings is for a value that encodes as a JSON array of strings. A program from before it reads one more string.
	//
	//	[..., "version 1 sha256:<hex of the bytes before the last space>"]
	Strings
)

// A file of the last three forms without a checksum comes from a version without checksums. It is read as it is.

// marks are the texts around a version and a checksum, in this order. In Object the fields come in between.
func (f Form) marks() (version, sum, end string) {
	switch f {
	case Strings:
		return `"version %d`, ` sha256:`, `"]`
	case Objects:
		return `{"version":%d`, `,"sha256":"`, `"}]`
	default:
		return `"version":%d`, `,"sha256":"`, `"}`
	}
}

// seal adds a version and a checksum to a value.
func (f Form) seal(version int, body []byte) ([]byte, error) {
	brackets, what := "[]", "array"
	if f == Object {
		brackets, what = "{}", "object"
	}
	if len(body) < 2 || body[0] != brackets[0] || body[len(body)-1] != brackets[1] {
		return nil, fmt.Errorf("%.40q is no JSON %s", body, what)
	}
	text, sum, end := f.marks()
	parts := [][]byte{body[1 : len(body)-1], fmt.Appendf(nil, text, version)}
	if f == Object {
		parts[0], parts[1] = parts[1], parts[0]
	}
	if len(body) == 2 {
		parts = [][]byte{fmt.Appendf(nil, text, version)}
	}
	sealed := append([]byte{brackets[0]}, bytes.Join(parts, []byte(","))...)
	return fmt.Appendf(sealed, "%s%s%s", sum, digest(sealed), end), nil
}

// open removes the version from a file, and from an array its last element too, once it has verified the checksum.
func (f Form) open(data []byte) (version int, body []byte, err error) {
	version, checksum, err := f.find(data)
	if err != nil {
		return 0, nil, err
	}
	if version < 1 {
		return 0, nil, fmt.Errorf("version %d is not a positive number", version)
	}
	if checksum == nil {
		return version, data, nil // from before there were checksums
	}
	text, sum, end := f.marks()
	sealed, found := bytes.CutSuffix(bytes.TrimSpace(data), []byte(sum+*checksum+end))
	if !found || digest(sealed) != *checksum {
		return 0, nil, fmt.Errorf("checksum %.80q does not match the %d bytes before it", *checksum, len(sealed))
	}
	if f == Object {
		return version, data, nil
	}
	elements, found := bytes.CutSuffix(sealed, fmt.Appendf(nil, text, version))
	if !found {
		return 0, nil, fmt.Errorf("the version does not stand before the checksum %.80q", *checksum)
	}
	return version, append(bytes.Clone(bytes.TrimSuffix(elements, []byte(","))), ']'), nil
}

var stringSeal = regexp.MustCompile(`^version ([0-9]{1,9}) sha256:([0-9a-f]*)$`)

// find reads the version and the checksum from their place. Without them the version is 1, and the checksum nil.
func (f Form) find(data []byte) (version int, checksum *string, err error) {
	var frame struct {
		Version *int    `json:"version"`
		Sum     *string `json:"sha256"`
	}
	if f == Object {
		if err := json.Unmarshal(data, &frame); err != nil {
			return 0, nil, fmt.Errorf("no JSON object: %w", err)
		}
		if frame.Version == nil {
			return 1, frame.Sum, nil
		}
		return *frame.Version, frame.Sum, nil
	}
	var elements []json.RawMessage
	if err := json.Unmarshal(data, &elements); err != nil {
		return 0, nil, fmt.Errorf("no JSON array: %w", err)
	}
	if len(elements) == 0 {
		return 1, nil, nil
	}
	last := elements[len(elements)-1]
	if f == Objects {
		if json.Unmarshal(last, &frame) != nil || frame.Version == nil || frame.Sum == nil {
			return 1, nil, nil
		}
		return *frame.Version, frame.Sum, nil
	}
	var text string
	if json.Unmarshal(last, &text) != nil {
		return 1, nil, nil
	}
	match := stringSeal.FindStringSubmatch(text)
	if match == nil {
		return 1, nil, nil
	}
	version, err = strconv.Atoi(match[1])
	return version, &match[2], err
}
