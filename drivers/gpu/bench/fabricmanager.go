//go:build ignore

// This takes the place of the other driver's client for NVIDIA's fabric manager, whose library no module proxy has. Nothing that is
// measured reaches it: it serves VFIO devices only.
package fabricmanager

import "errors"

type absent struct{}

// NewClient returns a client that can do nothing.
func NewClient(string, ConnectParams) Client { return absent{} }

var errAbsent = errors.New("left out of this build")

func (absent) Init() error                                        { return errAbsent }
func (absent) Shutdown() error                                    { return errAbsent }
func (absent) GetSupportedFabricPartitions() ([]Partition, error) { return nil, errAbsent }
func (absent) ActivateFabricPartition(int) error                  { return errAbsent }
func (absent) DeactivateFabricPartition(int) error                { return errAbsent }
