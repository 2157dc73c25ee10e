package claimstate

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/node/atomicfile"
)

const (
	extension     = ".claim"
	unreadableDir = "unreadable"
)

// Unreadable is a file that could not be read and was set aside.
type Unreadable struct {
	// File is where it lay, MovedTo where it lies now; MovedTo is empty where moving it failed too.
	File, MovedTo string
	// Err says what is wrong with it.
	Err error
}

func (u Unreadable) String() string {
	if u.MovedTo == "" {
		return fmt.Sprintf("claim state %s is unreadable and could not be set aside: %v", u.File, u.Err)
	}
	if errors.Is(u.Err, errNewer) {
		return fmt.Sprintf("claim state %s is not for this version of the program (%v); set aside as %s: run the newer version again and move the file back "+
			"before it starts, or delete the claim's pod and the file", u.File, u.Err, u.MovedTo)
	}
	return fmt.Sprintf("claim state %s is unreadable (%v); set aside as %s: look at it, then delete it", u.File, u.Err, u.MovedTo)
}

// Store is a directory of claim files, held in memory as well. It is safe for concurrent use; two writers of one claim must be
// kept apart by the caller.
type Store struct {
	dir    string
	writer atomicfile.Writer

	// aside are the claims whose records were set aside.
	aside []types.UID

	mu      sync.RWMutex
	records map[types.UID]Record
}

// Open makes dir if need be and reads every claim in it. Files that cannot be read are moved to dir/unreadable and returned; they
// are no error. An error means that the directory itself cannot be used.
func Open(dir string, writer atomicfile.Writer) (*Store, []Unreadable, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, nil, fmt.Errorf("open claim state: %w", err)
	}
	if _, err := atomicfile.Sweep(dir, ""); err != nil {
		return nil, nil, fmt.Errorf("open claim state: %w", err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, nil, fmt.Errorf("open claim state: %w", err)
	}
	store := &Store{dir: dir, writer: writer, records: make(map[types.UID]Record, len(entries))}
	var unreadable []Unreadable
	for _, entry := range entries {
		if filepath.Ext(entry.Name()) != extension {
			continue
		}
		record, err := store.read(entry.Name())
		if err != nil {
			unreadable = append(unreadable, store.setAside(entry.Name(), err))
			continue
		}
		store.records[record.UID] = record
	}
	if store.aside, err = readAside(dir, unreadable); err != nil {
		return nil, nil, fmt.Errorf("open claim state: %w", err)
	}
	return store, unreadable, nil
}

// readAside lists the claims whose files lie aside in dir, or should.
func readAside(dir string, unreadable []Unreadable) ([]types.UID, error) {
	entries, err := os.ReadDir(filepath.Join(dir, unreadableDir))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	names := make([]string, 0, len(entries)+len(unreadable))
	for _, entry := range entries {
		names = append(names, entry.Name())
	}
	for _, u := range unreadable {
		names = append(names, filepath.Base(u.File))
	}
	var claims []types.UID
	for _, name := range names {
		if uid, _, found := strings.Cut(name, extension); found {
			claims = append(claims, types.UID(uid))
		}
	}
	slices.Sort(claims)
	return slices.Compact(claims), nil
}

// SetAside are the claims whose records could not be read, at this start or one before, and whose files nobody has deleted since: they may hold devices,
// though nobody knows which.
func (s *Store) SetAside() []types.UID { return s.aside }

func (s *Store) read(name string) (Record, error) {
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		return Record{}, err
	}
	record, err := decode(data)
	if err != nil {
		return Record{}, err
	}
	if string(record.UID)+extension != name {
		return Record{}, fmt.Errorf("holds claim %s, its name says otherwise", record.UID)
	}
	return record, nil
}

// setAside moves a file out of the way without ever overwriting one that was set aside before.
func (s *Store) setAside(name string, why error) Unreadable {
	from := filepath.Join(s.dir, name)
	result := Unreadable{File: from, Err: why}
	dir := filepath.Join(s.dir, unreadableDir)
	if err := os.MkdirAll(dir, 0o750); err != nil {
		result.Err = errors.Join(why, err)
		return result
	}
	for i := 0; ; i++ {
		to := filepath.Join(dir, name)
		if i > 0 {
			to = fmt.Sprintf("%s.%d", to, i)
		}
		if _, err := os.Lstat(to); !errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err := os.Rename(from, to); err != nil {
			result.Err = errors.Join(why, err)
			return result
		}
		result.MovedTo = to
		return result
	}
}

// Put writes a record durably.
func (s *Store) Put(record Record) error {
	if err := checkUID(record.UID); err != nil {
		return err
	}
	data, err := encode(record)
	if err != nil {
		return err
	}
	if err := s.writer.Write(s.path(record.UID), data, 0o600); err != nil {
		return fmt.Errorf("keep claim %s/%s: %w", record.Namespace, record.Name, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.records[record.UID] = record
	return nil
}

// Get returns the record of a claim.
func (s *Store) Get(uid types.UID) (Record, bool) {
	s.mu.RLock()
	defer s.mu.RUnlock()
	record, ok := s.records[uid]
	return record, ok
}

// Delete forgets a claim durably. A claim that is not there is no error.
func (s *Store) Delete(uid types.UID) error {
	if err := checkUID(uid); err != nil {
		return err
	}
	if err := s.writer.Remove(s.path(uid)); err != nil {
		return fmt.Errorf("forget claim %s: %w", uid, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.records, uid)
	return nil
}

// List returns every record, sorted by UID.
func (s *Store) List() []Record {
	s.mu.RLock()
	defer s.mu.RUnlock()
	records := slices.Collect(maps.Values(s.records))
	slices.SortFunc(records, func(a, b Record) int { return strings.Compare(string(a.UID), string(b.UID)) })
	return records
}

// Len returns how many claims are held.
func (s *Store) Len() int {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return len(s.records)
}

func (s *Store) path(uid types.UID) string { return filepath.Join(s.dir, string(uid)+extension) }

// checkUID keeps what becomes a file name from leaving the directory. The API server makes UIDs, so this never fails in earnest.
func checkUID(uid types.UID) error {
	if uid == "" || strings.ContainsAny(string(uid), "/\\\x00") || strings.HasPrefix(string(uid), ".") {
		return fmt.Errorf("claim UID %.80q cannot be a file name", uid)
	}
	return nil
}
