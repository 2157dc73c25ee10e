package simnode_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"

	"k8s.io/klog/v2"
	deviceapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
	deviceplugin "k8s.io/kubernetes/pkg/kubelet/cm/devicemanager/plugin/v1beta1"

	"gpufabric.io/tests/simcluster/simnode"
)

const (
	pluginImage = "example.test/plugin:1"
	driverName  = "widget.example.test"
)

// widgetRuntime runs one program: a DRA driver with two devices a node, "left" and "right".
type widgetRuntime struct{}

func (widgetRuntime) Owns(image string) bool { return image == pluginImage }

func (widgetRuntime) Exec(_ context.Context, container simnode.Container, command []string) error {
	if !slices.Equal(command, []string{"healthy"}) {
		return fmt.Errorf("%s knows no command %v", container.Name, command)
	}
	return nil
}

func (widgetRuntime) Run(ctx context.Context, container simnode.Container) error {
	if container.Name == "gadgets" {
		return gadgets(ctx, container)
	}
	flags := map[string]string{}
	for _, arg := range container.Args {
		name, value, _ := strings.Cut(arg, "=")
		flags[name] = value
	}
	client, err := kubernetes.NewForConfig(container.REST)
	if err != nil {
		return err
	}
	kubelet := flags["--kubelet-root"]
	data := filepath.Join(kubelet, "plugins", driverName)
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	plugin := widgets{cdiRoot: flags["--cdi-root"], node: flags["--node"]}
	helper, err := kubeletplugin.Start(ctx, plugin, kubeletplugin.DriverName(driverName), kubeletplugin.NodeName(plugin.node),
		kubeletplugin.KubeClient(client), kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(kubelet, "plugins_registry")))
	if err != nil {
		return err
	}
	defer helper.Stop()
	devices := []resourceapi.Device{{Name: "left"}, {Name: "right"}}
	if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{
		plugin.node: {Slices: []resourceslice.Slice{{Devices: devices}}},
	}}); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

type widgets struct{ cdiRoot, node string }

func (w widgets) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult,
	error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		var devices []kubeletplugin.Device
		for _, result := range claim.Status.Allocation.Devices.Results {
			name := fmt.Sprintf("%s-%s", claim.UID, result.Device)
			spec := fmt.Sprintf(`{"cdiVersion":"0.5.0","kind":"example.test/widget","devices":[{"name":%q,"containerEdits":{
				"env":["WIDGET=%s"],"deviceNodes":[{"path":"/dev/widget-%s","type":"c","major":240,"minor":1}]}}]}`, name, result.Device, result.Device)
			if err := os.WriteFile(filepath.Join(w.cdiRoot, name+".json"), []byte(spec), 0o644); err != nil {
				results[claim.UID] = kubeletplugin.PrepareResult{Err: err}
				continue
			}
			devices = append(devices, kubeletplugin.Device{Requests: []string{result.Request}, PoolName: result.Pool, DeviceName: result.Device,
				CDIDeviceIDs: []string{"example.test/widget=" + name}})
		}
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices}
	}
	return results, nil
}

func (w widgets) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		files, err := filepath.Glob(filepath.Join(w.cdiRoot, string(claim.UID)+"-*.json"))
		for _, file := range files {
			err = os.Remove(file)
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (w widgets) HandleError(context.Context, error, string) {}

// gadgets is a device plugin with two devices.
func gadgets(ctx context.Context, container simnode.Container) error {
	sockets, ok := container.Real("/var/lib/kubelet/device-plugins")
	if !ok {
		return fmt.Errorf("%s has no /var/lib/kubelet/device-plugins", container.Name)
	}
	logger := klog.FromContext(ctx)
	stub := deviceplugin.NewDevicePluginStub(logger, []*deviceapi.Device{
		{ID: "a", Health: deviceapi.Healthy}, {ID: "b", Health: deviceapi.Healthy},
	}, filepath.Join(sockets, "gadget.sock"), "example.test/gadget", false, false)
	stub.SetAllocFunc(func(request *deviceapi.AllocateRequest, _ map[string]*deviceapi.Device) (*deviceapi.AllocateResponse, error) {
		response := &deviceapi.AllocateResponse{}
		for _, r := range request.ContainerRequests {
			answer := &deviceapi.ContainerAllocateResponse{Envs: map[string]string{"GADGETS": strings.Join(r.DevicesIds, ",")}}
			for _, id := range r.DevicesIds {
				answer.Devices = append(answer.Devices, &deviceapi.DeviceSpec{ContainerPath: "/dev/gadget-" + id, HostPath: "/dev/null",
					Permissions: "rw"})
			}
			response.ContainerResponses = append(response.ContainerResponses, answer)
		}
		return response, nil
	})
	if err := stub.Start(ctx); err != nil {
		return err
	}
	defer func() { _ = stub.Stop(logger) }()
	if err := stub.Register(ctx, filepath.Join(sockets, "kubelet.sock"), "example.test/gadget", sockets); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
