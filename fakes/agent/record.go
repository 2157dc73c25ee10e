package agent

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"gpufabric.io/fakes/fault"
)

// record has the FabricFaults that have happened to a rendered node, by UID, so that an agent that starts again does not repeat them. It is
// in the node's state, and goes with the hardware.
type record map[string]happened

// happened is one FabricFault on the node. It is written before the event, with the result Interrupted, and again after it.
type happened struct {
	outcome
	// Undo is the event that ends the fault at Until; empty: there is none, or it has happened.
	Undo string          `json:"undo,omitempty"`
	With fault.Arguments `json:"with,omitempty"`
}

func recordPath(root string) string { return filepath.Join(root, "state", "fabricfaults.json") }

func readRecord(root string) (record, error) {
	r := record{}
	data, err := os.ReadFile(recordPath(root))
	if errors.Is(err, os.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	if err != nil {
		return nil, fmt.Errorf("read the FabricFaults that have happened from %s: %w; others wait until the file is readable or removed",
			recordPath(root), err)
	}
	return r, nil
}

// write replaces the record atomically.
func (r record) write(root string) error {
	data, err := json.Marshal(r)
	if err != nil {
		return err
	}
	temporary := recordPath(root) + ".new"
	if err := os.WriteFile(temporary, append(data, '\n'), 0o644); err != nil {
		return fmt.Errorf("record FabricFaults: %w", err)
	}
	return os.Rename(temporary, recordPath(root))
}

func removeRecord(root string) error {
	if err := os.Remove(recordPath(root)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return nil
}
