// Package figures passes the figures of a node's GPUs to the monitor. Reading them opens device nodes, which needs privilege; the
// monitor reads files of tenants and should have no privilege. So vgpu-plugin, which has NVML open anyway, serves them on a Unix
// socket in its state directory. It reads nothing from its clients.
package figures

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"sync"
	"time"

	"gpufabric.io/drivers/node/unixsocket"
)

// Socket is the socket's name in vgpu-plugin's state directory.
const Socket = "figures.sock"

const (
	// patience bounds a connection on both sides. NVML answers within milliseconds; a scrape may take ten seconds.
	patience = 5 * time.Second
	// largest is the most that is read, in bytes. A node of sixteen GPUs has 3 kB, and 200 bytes for each container that the driver limits.
	largest = 1 << 20
)

// GPU is the present state of one GPU of the node.
type GPU struct {
	Index int    `json:"index"`
	UUID  string `json:"uuid"`
	// MemoryUsed and MemoryTotal are in bytes.
	MemoryUsed  uint64 `json:"memoryUsed"`
	MemoryTotal uint64 `json:"memoryTotal"`
	// Utilization is the share of time in which a kernel ran, in percent.
	Utilization uint32 `json:"utilization"`
}

// Use is a container's use of a GPU, where the driver counts it.
type Use struct {
	PodUID    string `json:"podUID"`
	Container string `json:"container"`
	// UUID is the GPU's. Bytes are of its memory.
	UUID  string `json:"uuid"`
	Bytes uint64 `json:"bytes"`
}

// Figures are a node's. Fields are only ever added: the two roles may be of different versions.
type Figures struct {
	// Factor is the size of a unit of memory in MiB.
	Factor int   `json:"factor"`
	GPUs   []GPU `json:"gpus"`
	// Used has only the containers that the driver limits.
	Used []Use `json:"used,omitempty"`
	// Cores has only the containers with a percentage of the cores.
	Cores []CoreUse `json:"cores,omitempty"`
}

// CoreUse is how much of a GPU's time a container has, as its library counts it.
type CoreUse struct {
	PodUID    string `json:"podUID"`
	Container string `json:"container"`
	// UUID is the GPU's. Percent is of the time since the figures were last read.
	UUID    string  `json:"uuid"`
	Percent float64 `json:"percent"`
}

// CoresOf is a container's part of a GPU's time, in percent; false if it is not counted on this node.
func (f Figures) CoresOf(podUID, container, uuid string) (percent float64, counted bool) {
	for _, use := range f.Cores {
		if use.PodUID == podUID && use.Container == container && use.UUID == uuid {
			return use.Percent, true
		}
	}
	return 0, false
}

// UsedBy is a container's memory of a GPU as the driver counts it, in bytes; false where the driver does not limit it.
func (f Figures) UsedBy(podUID, container, uuid string) (bytes uint64, counted bool) {
	for _, use := range f.Used {
		if use.PodUID == podUID && use.Container == container && use.UUID == uuid {
			return use.Bytes, true
		}
	}
	return 0, false
}

// Serve sends each client of the socket at path the result of read, until ctx ends. After it returns there are no calls of read and no new
// connections.
func Serve(ctx context.Context, path string, read func() Figures) error {
	listener, err := unixsocket.Listen(ctx, path)
	if err != nil {
		return fmt.Errorf("serve the GPUs' figures: %w", err)
	}
	closed := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		_ = listener.Close()
		close(closed)
	})
	defer func() { // no connection after the return: Accept wakes up a moment before the socket is closed
		if stop() {
			_ = listener.Close()
			return
		}
		<-closed
	}()
	var answers sync.WaitGroup
	defer answers.Wait()
	var one sync.Mutex // one query of NVML at a time, however many clients there are
	for {
		connection, err := listener.Accept()
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("serve the GPUs' figures: %w", err)
		}
		answers.Go(func() {
			defer func() { _ = connection.Close() }()
			one.Lock()
			defer one.Unlock()
			if ctx.Err() != nil || connection.SetDeadline(time.Now().Add(patience)) != nil {
				return
			}
			_ = json.NewEncoder(connection).Encode(read()) // a client that does not read it connects again
		})
	}
}

// Read requests the figures once.
func Read(ctx context.Context, path string) (Figures, error) {
	var f Figures
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	connection, err := unixsocket.Dial(ctx, path)
	if err != nil {
		return f, fmt.Errorf("request the GPUs' figures of vgpu-plugin: %w", err)
	}
	defer func() { _ = connection.Close() }() // only read
	if deadline, ok := ctx.Deadline(); ok {
		if err := connection.SetDeadline(deadline); err != nil {
			return f, err
		}
	}
	if f, err = decode(connection); err != nil {
		return f, fmt.Errorf("read the GPUs' figures from %s: %w", path, err)
	}
	return f, nil
}

func decode(from io.Reader) (f Figures, err error) {
	if err := json.NewDecoder(io.LimitReader(from, largest)).Decode(&f); err != nil {
		return f, err
	}
	if f.Factor < 1 {
		return f, fmt.Errorf("the unit of memory is %d MiB, where 1 or more is expected", f.Factor)
	}
	return f, nil
}
