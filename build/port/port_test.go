package port

import (
	"fmt"
	"net"
	"slices"
	"testing"
)

func TestFreePortsAreDifferentAndCanBeListenedOn(t *testing.T) {
	ports, err := Free(50)
	if err != nil {
		t.Fatal(err)
	}
	if slices.Sort(ports); len(slices.Compact(slices.Clone(ports))) != 50 {
		t.Errorf("among %v one comes twice", ports)
	}
	listener, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0]))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = listener.Close() }()
}
