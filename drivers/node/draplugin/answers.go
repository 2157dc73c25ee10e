package draplugin

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"

	"gpufabric.io/drivers/node/filewatch"
)

// answerTimeout bounds a call of the plugin to itself. The answer needs only this process, and the kubelet's probes have their own time
// limit of a few seconds.
const answerTimeout = 2 * time.Second

// Answers sends this plugin the kubelet's calls over its two kubelet sockets: GetInfo, and a prepare of an empty list of claims. The error
// names the socket that does not answer: it was deleted, another process took it over, or its server hangs. Without the directory of its
// CDI specs, or of its records, it could answer no claim.
func (p *Plugin) Answers() error {
	if err := p.Err(); err != nil {
		return fmt.Errorf("the plugin has stopped: %w", err)
	}
	for _, directory := range []string{p.config.Node.CDIRoot, p.config.Node.StateDir} {
		if err := filewatch.Removed(directory); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(p.ctx, answerTimeout)
	defer cancel()
	registration := filepath.Join(p.config.Node.KubeletRoot, "plugins_registry", p.config.Driver+"-reg.sock")
	err := ask(registration, func(connection *grpc.ClientConn) error {
		info, err := registerapi.NewRegistrationClient(connection).GetInfo(ctx, &registerapi.InfoRequest{})
		if err == nil && info.GetName() != p.config.Driver {
			return fmt.Errorf("plugin %s answers there", info.GetName())
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("socket %s, by which driver %s is registered with the kubelet, does not answer: %w", registration, p.config.Driver, err)
	}
	service := filepath.Join(p.config.Node.KubeletRoot, "plugins", p.config.Driver, "dra.sock")
	err = ask(service, func(connection *grpc.ClientConn) error {
		_, err := drapb.NewDRAPluginClient(connection).NodePrepareResources(ctx, &drapb.NodePrepareResourcesRequest{})
		return err
	})
	if err != nil {
		return fmt.Errorf("socket %s, by which the kubelet prepares claims of driver %s, does not answer: %w", service, p.config.Driver, err)
	}
	return nil
}

// ask opens a new connection each time. A kept connection would still work after the socket's file is gone.
func ask(socket string, question func(*grpc.ClientConn) error) error {
	connection, err := grpc.NewClient("unix:"+socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	return question(connection)
}
