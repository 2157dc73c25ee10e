package plugin

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gpufabric.io/drivers/rdma/dra"
	"gpufabric.io/drivers/rdma/health"
)

// maxList bounds the kubelet's answer: 256 pods with a thousand devices each, of some sixteen bytes, are 4 MiB.
const maxList = 16 << 20

// holder is a container that has a unit of an extended resource, or a device of a claim.
type holder struct {
	Namespace, Pod, Container string
	Resource                  string // the extended resource, or the claim as claim/<name>
	unit, device              string // one of the two
}

// without returns the holder without the unit or device.
func (h holder) without() holder {
	h.unit, h.device = "", ""
	return h
}

// ports are the ports that the holder has.
func (h holder) ports(view *metricsView) []health.Key {
	if h.device != "" {
		return view.Device(h.device)
	}
	var keys []health.Key
	for _, hca := range view.Unit(h.Resource, h.unit) {
		for _, p := range hca.Ports {
			keys = append(keys, health.Key{Device: hca.Name, Port: p.Number})
		}
	}
	return keys
}

// podResources is the kubelet's pod resources API.
type podResources struct{ socket string }

func (k *podResources) holders() ([]holder, error) {
	ctx, cancel := context.WithTimeout(context.Background(), scrapePatience)
	defer cancel()
	connection, err := grpc.NewClient("unix:"+k.socket, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxList)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = connection.Close() }()
	list, err := podresources.NewPodResourcesListerClient(connection).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("read the pods' devices from the kubelet at %s: %w", k.socket, err)
	}
	var holders []holder
	for _, pod := range list.GetPodResources() {
		for _, container := range pod.GetContainers() {
			h := holder{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container.GetName()}
			holders = append(holders, h.ofUnits(container.GetDevices())...)
			holders = append(holders, h.ofClaims(container.GetDynamicResources())...)
		}
	}
	return holders, nil
}

// ofUnits returns one holder for each unit that the kubelet gave to the container h, of any extended resource.
func (h holder) ofUnits(given []*podresources.ContainerDevices) []holder {
	var holders []holder
	for _, devices := range given {
		for _, id := range devices.GetDeviceIds() {
			h.Resource, h.unit = devices.GetResourceName(), id
			holders = append(holders, h)
		}
	}
	return holders
}

// ofClaims returns one holder for each device of this driver in the claims of the container h.
func (h holder) ofClaims(claims []*podresources.DynamicResource) []holder {
	var holders []holder
	for _, claim := range claims {
		for _, r := range claim.GetClaimResources() {
			if r.GetDriverName() == dra.Driver && strings.HasSuffix(r.GetPoolName(), "-rdma") {
				h.Resource, h.device = "claim/"+claim.GetClaimName(), r.GetDeviceName()
				holders = append(holders, h)
			}
		}
	}
	return holders
}
