package capability

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http/httptrace"

	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
)

// State is an API server as a client reaches it.
type State struct {
	// Version is the server's version, with the version that it emulates, such as "v1.36.3 emulating 1.35".
	Version string
	// Connection is the client's address of the connection, such as "10.0.0.1:43210". It changes when the server was restarted, with other
	// feature gates perhaps, and when a load balancer chose another server. Empty: the client does not show it.
	Connection string
}

// StateOf reads the API server's version.
func StateOf(ctx context.Context, server discovery.DiscoveryInterface) (State, error) {
	var state State
	info, err := read(ctx, server, &state)
	if err != nil {
		return state, fmt.Errorf("read the API server's version: %w", err)
	}
	state.Version = info.GitVersion
	if info.EmulationMinor != "" && info.EmulationMinor != info.Minor {
		state.Version += " emulating " + info.EmulationMajor + "." + info.EmulationMinor
	}
	return state, nil
}

// read requests /version as ServerVersion does, and records the connection, which ServerVersion does not show.
func read(ctx context.Context, server discovery.DiscoveryInterface, state *State) (*version.Info, error) {
	client := server.RESTClient()
	if client == nil { // a fake
		return server.ServerVersion()
	}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(c httptrace.GotConnInfo) {
		state.Connection = c.Conn.LocalAddr().String()
	}})
	text, err := client.Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return nil, err
	}
	var info version.Info
	return &info, json.Unmarshal(text, &info)
}
