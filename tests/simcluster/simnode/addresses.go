package simnode

import (
	"fmt"
	"net"
	"os"
	"strings"
	"sync"
)

// podsPerNode is how many pod addresses a node has: the last byte without 0, the node's own 1, and 255.
const podsPerNode = 253

// Addresses are a simulated node's: 127.A.B.1 is the node, 127.A.B.2 to 127.A.B.254 are its pods. All of 127.0.0.0/8 is
// this machine, so programs can listen on the same port at each, without root.
type Addresses struct {
	// Reuse gives a new pod the lowest free address, even of an earlier pod.
	Reuse bool
	a, b  byte

	mu    sync.Mutex
	inUse map[byte]bool
	last  byte
}

// NewAddresses gives node number i its addresses in block (see Block).
func NewAddresses(block, i int) *Addresses {
	n := block*nodesPerBlock + i
	return &Addresses{a: byte(firstByte + n>>8), b: byte(n), inUse: map[byte]bool{}, last: 1}
}

// Node is the node's own address.
func (a *Addresses) Node() string { return a.format(1) }

// Take reserves an address for a pod. If wanted is a free address of this node, it is returned, so that a pod keeps its address
// through a reboot of the simulated node.
func (a *Addresses) Take(wanted string) (string, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	wanted = podAddress(wanted)
	if ip := net.ParseIP(wanted).To4(); ip != nil && a.format(ip[3]) == wanted && ip[3] > 1 && !a.inUse[ip[3]] {
		a.inUse[ip[3]] = true
		return wanted, nil
	}
	// The next one after the last, so that an address is not reused at once. Late connections to the earlier pod are then
	// refused, and do not reach another pod.
	if a.Reuse {
		a.last = 1
	}
	for range podsPerNode {
		a.last++
		if a.last < 2 || a.last > 254 {
			a.last = 2
		}
		if !a.inUse[a.last] {
			a.inUse[a.last] = true
			return a.format(a.last), nil
		}
	}
	return "", fmt.Errorf("all %d pod addresses of the node are in use", podsPerNode)
}

// Give releases a pod's address.
func (a *Addresses) Give(address string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if ip := net.ParseIP(address).To4(); ip != nil {
		delete(a.inUse, ip[3])
	}
}

// Services and the API server reach pods at addresses that an EndpointSlice may have, which loopback ones are not: 10.A.B.C
// stands for 127.A.B.C there, and the API server's gateway to the cluster (see Gateway) maps it back.
const (
	loopbackPrefix = "127."
	servicePrefix  = "10."
)

// serviceAddress is the address by which a pod's services know it.
func serviceAddress(address string) string {
	rest, _ := strings.CutPrefix(address, loopbackPrefix)
	return servicePrefix + rest
}

// podAddress undoes serviceAddress; others stay as they are.
func podAddress(address string) string {
	if rest, ok := strings.CutPrefix(address, servicePrefix); ok {
		return loopbackPrefix + rest
	}
	return address
}

func (a *Addresses) format(last byte) string { return fmt.Sprintf("127.%d.%d.%d", a.a, a.b, last) }

const (
	// firstByte avoids 127.0.x.x, where other programs listen.
	firstByte = 16
	// nodesPerBlock is how many nodes one cluster may have: 8 x 256.
	nodesPerBlock = 2048
	// blocks is how many clusters may run at once: (256-16)/8.
	blocks = 30
)

// Block is a cluster's part of 127.0.0.0/8. It is locked, so that two clusters on one machine do not use the same addresses.
type Block struct {
	Number int
	holder net.Listener
}

// TakeBlock reserves a free block for as long as the calling process lives, or until Release.
func TakeBlock() (*Block, error) {
	for number := range blocks {
		// An abstract socket: the kernel releases it with the process, however that ends.
		holder, err := net.Listen("unix", fmt.Sprintf("@gpufabric-simcluster-%d", number))
		if err == nil {
			return &Block{Number: number, holder: holder}, nil
		}
	}
	return nil, fmt.Errorf("all %d address blocks are taken: that many simulated clusters run on this machine; end one with `simcluster down`",
		blocks)
}

// File is the lock of the block as a file: a process that has it open holds the block.
func (b *Block) File() (*os.File, error) {
	file, err := b.holder.(*net.UnixListener).File()
	if err != nil {
		return nil, fmt.Errorf("share the lock on the address block: %w", err)
	}
	return file, nil
}

// Release lets another cluster use the block.
func (b *Block) Release() { _ = b.holder.Close() }

// MostNodes is how many nodes a cluster may have: those of one block of addresses.
const MostNodes = nodesPerBlock
