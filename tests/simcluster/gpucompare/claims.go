package gpucompare

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	apiwatch "k8s.io/apimachinery/pkg/watch"
	drapb "k8s.io/kubelet/pkg/apis/dra/v1"
)

// awaitPublished watches the node's slices. The channel gets the time at which the pool was complete, with MIG devices if mig
// is set. Our plugin publishes its earlier form until it has read the node's labels.
func (d *driver) awaitPublished(ctx context.Context, mig bool) (<-chan time.Time, error) {
	watch, err := d.client.ResourceV1().ResourceSlices().Watch(ctx, metav1.ListOptions{FieldSelector: "spec.nodeName=" + d.node})
	if err != nil {
		return nil, fmt.Errorf("watch the ResourceSlices of %s: %w", d.node, err)
	}
	whole := make(chan time.Time, 1)
	go func() { // ends with the watch, whose context ends with the start
		defer watch.Stop()
		known := map[string]*resourceapi.ResourceSlice{}
		for event := range watch.ResultChan() {
			slice, ok := event.Object.(*resourceapi.ResourceSlice)
			if !ok || slice.Spec.Driver != driverName {
				continue
			}
			known[slice.Name] = slice
			if event.Type == apiwatch.Deleted {
				delete(known, slice.Name)
			}
			maps.DeleteFunc(known, func(_ string, other *resourceapi.ResourceSlice) bool {
				return other.Spec.Pool.Generation < slice.Spec.Pool.Generation
			})
			if int64(len(known)) == slice.Spec.Pool.ResourceSliceCount {
				d.read(known)
				if len(d.gpus) == gpus && mig == (d.mig != "") {
					whole <- time.Now()
					return
				}
			}
		}
	}()
	return whole, nil
}

// read takes the devices out of slices.
func (d *driver) read(published map[string]*resourceapi.ResourceSlice) {
	d.gpus, d.mig = nil, ""
	var cuts []string
	for _, slice := range published {
		d.pool = slice.Spec.Pool.Name
		for _, device := range slice.Spec.Devices {
			kind := ""
			for name, attribute := range device.Attributes {
				if name == "type" || name == driverName+"/type" {
					kind = *attribute.StringValue
				}
			}
			switch kind {
			case "gpu":
				d.gpus = append(d.gpus, device.Name)
			case "mig":
				cuts = append(cuts, device.Name)
			}
		}
	}
	slices.Sort(d.gpus)
	slices.Sort(cuts)
	if len(d.gpus) < 2 {
		return
	}
	d.migParent = d.gpus[1]
	if i := slices.IndexFunc(cuts, func(name string) bool { return strings.HasPrefix(name, d.migParent+"-mig-1g") }); i >= 0 {
		d.mig = cuts[i]
	}
}

// dial connects to the plugin's socket as the kubelet does.
func (d *driver) dial() error {
	sockets, err := filepath.Glob(d.path("k/plugins/" + driverName + "/*.sock"))
	if err != nil {
		return fmt.Errorf("find the plugin's socket: %w", err)
	}
	sockets = slices.DeleteFunc(sockets, func(path string) bool { return strings.HasSuffix(path, "-reg.sock") })
	if len(sockets) != 1 {
		return fmt.Errorf("the plugin has the sockets %v, want one that serves claims", sockets)
	}
	if d.kubelet, err = grpc.NewClient("unix://"+sockets[0], grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		return fmt.Errorf("connect to the plugin: %w", err)
	}
	d.kubelet.Connect()
	return nil
}

// claim makes a claim with an allocated device.
func (d *driver) claim(ctx context.Context, name, device string) (*resourceapi.ResourceClaim, error) {
	claims := d.client.ResourceV1().ResourceClaims("default")
	class := "gpu.nvidia.com"
	if device == d.mig {
		class = "mig.nvidia.com"
	}
	claim, err := claims.Create(ctx, &resourceapi.ResourceClaim{
		ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("%s-%s-%s", d.node, name, device)},
		Spec: resourceapi.ResourceClaimSpec{Devices: resourceapi.DeviceClaim{Requests: []resourceapi.DeviceRequest{
			{Name: "r", Exactly: &resourceapi.ExactDeviceRequest{DeviceClassName: class}},
		}}},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("make a claim of %s: %w", device, err)
	}
	claim.Status.Allocation = &resourceapi.AllocationResult{Devices: resourceapi.DeviceAllocationResult{
		Results: []resourceapi.DeviceRequestAllocationResult{{Request: "r", Driver: driverName, Pool: d.pool, Device: device}},
	}}
	claim.Status.ReservedFor = []resourceapi.ResourceClaimConsumerReference{{Resource: "pods", Name: "p", UID: "p"}}
	if claim, err = claims.UpdateStatus(ctx, claim, metav1.UpdateOptions{}); err != nil {
		return nil, fmt.Errorf("allocate %s: %w", device, err)
	}
	return claim, nil
}

// time prepares one claim for each device, all at once, then unprepares them, and records how long each call took.
func (d *driver) time(ctx context.Context, name, what string, devices []string) error {
	var claims []*resourceapi.ResourceClaim
	for _, device := range devices {
		claim, err := d.claim(ctx, name+strings.Map(letters, what), device)
		if err != nil {
			return err
		}
		claims = append(claims, claim)
	}
	for _, step := range []struct {
		name string
		call func(context.Context, *resourceapi.ResourceClaim) error
	}{{"prepare ", d.prepare}, {"unprepare ", d.unprepare}} {
		var calls sync.WaitGroup
		took, errs := make([]time.Duration, len(claims)), make([]error, len(claims))
		for i, claim := range claims {
			calls.Go(func() {
				began := time.Now()
				errs[i] = step.call(ctx, claim)
				took[i] = time.Since(began)
			})
		}
		calls.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		d.result.Times[step.name+what] = append(d.result.Times[step.name+what], took...)
	}
	return nil
}

// letters keeps the characters of a sentence that an object's name may have.
func letters(r rune) rune {
	if r >= 'a' && r <= 'z' || r >= '0' && r <= '9' {
		return r
	}
	return -1
}

func (d *driver) prepare(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	answer, err := drapb.NewDRAPluginClient(d.kubelet).NodePrepareResources(ctx,
		&drapb.NodePrepareResourcesRequest{Claims: []*drapb.Claim{reference(claim)}})
	if err != nil {
		return fmt.Errorf("prepare claim %s: %w", claim.Name, err)
	}
	if result := answer.Claims[string(claim.UID)]; result == nil || result.Error != "" || len(result.Devices) != 1 {
		return fmt.Errorf("prepare claim %s: %v", claim.Name, result)
	}
	return nil
}

func (d *driver) unprepare(ctx context.Context, claim *resourceapi.ResourceClaim) error {
	answer, err := drapb.NewDRAPluginClient(d.kubelet).NodeUnprepareResources(ctx,
		&drapb.NodeUnprepareResourcesRequest{Claims: []*drapb.Claim{reference(claim)}})
	if err != nil {
		return fmt.Errorf("unprepare claim %s: %w", claim.Name, err)
	}
	if result := answer.Claims[string(claim.UID)]; result == nil || result.Error != "" {
		return fmt.Errorf("unprepare claim %s: %v", claim.Name, result)
	}
	return nil
}

func reference(claim *resourceapi.ResourceClaim) *drapb.Claim {
	return &drapb.Claim{Namespace: claim.Namespace, Name: claim.Name, Uid: string(claim.UID)}
}

// channelsSpec is the file of the CDI spec with all channels.
const channelsSpec = "compute-domain.nvidia.com-channels.yaml"

// writeChannels writes a CDI spec with a device for each of 2048 IMEX channels.
func (d *driver) writeChannels() error {
	const channels, major = 2048, 507
	var spec strings.Builder
	spec.WriteString("cdiVersion: 0.5.0\nkind: k8s.compute-domain.nvidia.com/channel\ndevices:\n")
	for i := range channels {
		fmt.Fprintf(&spec, "- name: channel%[1]d\n  containerEdits:\n    deviceNodes:\n    - path: "+
			"/dev/nvidia-caps-imex-channels/channel%[1]d\n      type: c\n      major: %[2]d\n      minor: %[1]d\n      fileMode: 438\n      "+
			"permissions: rw\n", i, major)
	}
	if err := os.WriteFile(filepath.Join(d.cdi, channelsSpec), []byte(spec.String()), 0o644); err != nil {
		return fmt.Errorf("write a CDI spec of channels: %w", err)
	}
	return nil
}

func (d *driver) removeChannels() error { return os.Remove(filepath.Join(d.cdi, channelsSpec)) }
