package exporter

import (
	"context"
	"fmt"
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	podresources "k8s.io/kubelet/pkg/apis/podresources/v1"

	"gpufabric.io/drivers/rdma/health"
)

// driver is the DRA driver whose devices are ports.
const driver = "rdma.gpufabric.io"

// maxList bounds the kubelet's answer: 256 pods with a thousand devices each, of some sixteen octets, are 4 MiB.
const maxList = 16 << 20

// Holder is a container that holds a unit of an extended resource, or a device of a claim.
type Holder struct {
	Namespace, Pod, Container string
	Resource                  string // the extended resource, or the claim as claim/<name>
	unit, device              string // one of the two
}

// without returns the holder without what it holds.
func (h Holder) without() Holder {
	h.unit, h.device = "", ""
	return h
}

// ports are the ports that the holder has.
func (h Holder) ports(view *View) []health.Key {
	if h.device != "" {
		return view.Device(h.device)
	}
	hca := view.Unit(h.Resource, h.unit)
	if hca == nil {
		return nil
	}
	var keys []health.Key
	for _, p := range hca.Ports {
		keys = append(keys, health.Key{Device: hca.Name, Port: p.Number})
	}
	return keys
}

// kubelet asks the kubelet's pod resources API.
type kubelet struct{ socket string }

func (k *kubelet) holders() ([]Holder, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	connection, err := grpc.NewClient("unix:"+k.socket, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxList)))
	if err != nil {
		return nil, err
	}
	defer func() { _ = connection.Close() }()
	list, err := podresources.NewPodResourcesListerClient(connection).List(ctx, &podresources.ListPodResourcesRequest{})
	if err != nil {
		return nil, fmt.Errorf("ask the kubelet at %s who holds which device: %w", k.socket, err)
	}
	var holders []Holder
	for _, pod := range list.GetPodResources() {
		for _, container := range pod.GetContainers() {
			h := Holder{Namespace: pod.GetNamespace(), Pod: pod.GetName(), Container: container.GetName()}
			holders = append(holders, h.ofUnits(container.GetDevices())...)
			holders = append(holders, h.ofClaims(container.GetDynamicResources())...)
		}
	}
	return holders, nil
}

// ofUnits are one holder a unit that the kubelet gave to the container h, of whatever extended resource.
func (h Holder) ofUnits(given []*podresources.ContainerDevices) []Holder {
	var holders []Holder
	for _, devices := range given {
		for _, id := range devices.GetDeviceIds() {
			h.Resource, h.unit = devices.GetResourceName(), id
			holders = append(holders, h)
		}
	}
	return holders
}

// ofClaims are one holder a device of this driver that the claims of the container h have.
func (h Holder) ofClaims(claims []*podresources.DynamicResource) []Holder {
	var holders []Holder
	for _, claim := range claims {
		for _, r := range claim.GetClaimResources() {
			if r.GetDriverName() == driver && strings.HasSuffix(r.GetPoolName(), "-rdma") {
				h.Resource, h.device = "claim/"+claim.GetClaimName(), r.GetDeviceName()
				holders = append(holders, h)
			}
		}
	}
	return holders
}
