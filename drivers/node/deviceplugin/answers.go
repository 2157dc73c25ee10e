package deviceplugin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"

	"gpufabric.io/drivers/node/filewatch"
)

// answerTimeout bounds the queries of Answers.
const answerTimeout = 2 * time.Second

// Answers sends each resource's socket the kubelet's calls. The error names those that do not answer. Without a kubelet there are no
// sockets, and Answers returns nil, unless somebody removed the directory: a kubelet that starts then listens in another one.
func (h *Host) Answers() error {
	if err := filewatch.Removed(h.dir); err != nil {
		return err
	}
	if _, err := os.Stat(filepath.Join(h.dir, kubeletSocket)); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	h.mu.Lock()
	resources := slices.Collect(maps.Values(h.resources))
	h.mu.Unlock()
	ctx, cancel := context.WithTimeout(context.Background(), answerTimeout)
	defer cancel()
	for _, r := range resources {
		if err := r.answers(ctx); err != nil {
			return fmt.Errorf("socket %s, by which the kubelet allocates %s, does not answer: %w", r.socket, r.name, err)
		}
	}
	return nil
}

func (r *Resource) answers(ctx context.Context) error {
	connection, err := grpc.NewClient("unix:"+r.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer func() { _ = connection.Close() }()
	_, err = pluginapi.NewDevicePluginClient(connection).GetDevicePluginOptions(ctx, &pluginapi.Empty{})
	return err
}
