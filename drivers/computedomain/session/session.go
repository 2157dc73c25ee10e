// Package session is the record of the IMEX sessions of one IMEX daemon on one node. The daemon's supervisor writes it in the
// directory of the daemon's domain on the node, and the node plugin reads it. When a session ends, the driver disables every client
// on the node that has imported memory of other nodes (open-gpu-kernel-modules, src/nvidia/src/kernel/rmapi/imex_session_api.c),
// and nothing notifies the pods.
package session

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"gpufabric.io/drivers/node/atomicfile"
)

// FileName is the record's name in the domain's directory.
const FileName = "sessions.json"

const (
	version = 1
	// kept is how many ends a record keeps, the newest: a daemon that ends again and again must not fill the node's disk.
	kept = 16
	// longest is the maximum length of the reason for an end, in bytes: it becomes part of an Event, which holds 1,024.
	longest = 400
	// longestFile is the maximum length of a file that is read, in bytes: kept ends have 8 KiB.
	longestFile = 64 << 10
)

// Unnoticed is the reason where the supervisor ended together with the session.
const Unnoticed = "the IMEX daemon's container ended at once, with all that ran in it"

// Record is the stored state of a daemon's sessions.
type Record struct {
	// Version of the record's form.
	Version int `json:"version"`
	// Session is the number of the newest session. Numbers grow, and 0 is none.
	Session int64 `json:"session"`
	// Open means that the session had not ended when its supervisor last wrote.
	Open bool `json:"open"`
	// Ends are the newest ends, the oldest first.
	Ends []End `json:"ends,omitempty"`
}

// End is the end of a session.
type End struct {
	Session int64 `json:"session"`
	// At is when the supervisor detected it.
	At time.Time `json:"at"`
	// Why in words.
	Why string `json:"why"`
}

// Read reads the record of a directory. A missing record has no session.
func Read(dir string) (Record, error) {
	path := filepath.Join(dir, FileName)
	data, err := ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Record{Version: version}, nil
	}
	if err != nil {
		return Record{}, fmt.Errorf("read the record of IMEX sessions: %w", err)
	}
	var record Record
	if err := json.Unmarshal(data, &record); err != nil {
		return Record{}, fmt.Errorf("read the record of IMEX sessions %s: %w", path, err)
	}
	if record.Version != version {
		return Record{}, fmt.Errorf("the record of IMEX sessions %s is of version %d, supported is %d: another version of this program wrote it",
			path, record.Version, version)
	}
	return record, nil
}

// ReadFile reads a file of a domain's directory. The daemon's container can replace it by anything: ReadFile does not follow a
// link, wait for the writer of a pipe, or read a file of over 64 KiB.
func ReadFile(path string) ([]byte, error) {
	file, err := os.OpenFile(path, os.O_RDONLY|unix.O_NOFOLLOW|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }() // it was only read
	info, err := file.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, fmt.Errorf("%s is not a plain file: remove it", path)
	}
	data, err := io.ReadAll(io.LimitReader(file, longestFile+1))
	if err == nil && len(data) > longestFile {
		err = fmt.Errorf("%s has over %d bytes: remove it", path, longestFile)
	}
	return data, err
}

// Begin records that a daemon is about to open a session. A session that is still open in the record has ended unnoticed.
func Begin(dir string, now time.Time) error {
	record, unreadable := Read(dir)
	if unreadable != nil {
		// Claims have numbers of the lost record. Seconds since 1970 are above any count.
		record = Record{Version: version, Session: now.Unix()}
	}
	record.finish(now, Unnoticed)
	record.Session++
	record.Open = true
	return errors.Join(unreadable, record.write(dir))
}

// Finish records that the session has ended.
func Finish(dir string, now time.Time, why string) error {
	record, err := Read(dir)
	if err != nil || !record.Open {
		return err
	}
	record.finish(now, why)
	return record.write(dir)
}

// Cancel records that the session was not opened: its daemon did not start.
func Cancel(dir string) error {
	record, err := Read(dir)
	if err != nil || !record.Open {
		return err
	}
	record.Open = false
	return record.write(dir)
}

func (r *Record) finish(now time.Time, why string) {
	if !r.Open {
		return
	}
	if len(why) > longest {
		why = strings.ToValidUTF8(why[:longest], "") + " ..."
	}
	r.Open = false
	r.Ends = append(r.Ends, End{Session: r.Session, At: now, Why: why})
	r.Ends = r.Ends[max(0, len(r.Ends)-kept):]
}

func (r *Record) write(dir string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("write the record of IMEX sessions: %w", err)
	}
	var writer atomicfile.Writer
	return writer.Write(filepath.Join(dir, FileName), append(data, '\n'), 0o644)
}
