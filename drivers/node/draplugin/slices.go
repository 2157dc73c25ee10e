package draplugin

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
)

// ownerInterval is how often it is checked whether slices were made again, which queries the API server nothing.
const ownerInterval = 5 * time.Second

// nodeSlices runs the library's controller of this node's ResourceSlices, and replaces it when the Node has another UID.
//
// The controller reads the Node's UID once, as the owner of the slices. A Node that was deleted and registers again under its name has
// another UID. The garbage collector deletes slices with an owner of the old one, and the controller makes them again with it, every 30 s.
// (kubeletplugin.Helper runs the same controller, and cannot replace it.)
type nodeSlices struct {
	driver, node string
	// options are the options of every controller; driver, node and owner are set here.
	options resourceslice.Options
	// ctx ends the controllers.
	ctx context.Context

	mu         sync.Mutex
	owner      types.UID
	resources  *resourceslice.DriverResources
	controller *resourceslice.Controller
	made       int64 // slices that the controller had made when the owner was last compared
	withdrawn  bool
}

// publish makes resources the content of the node's slices.
func (s *nodeSlices) publish(resources resourceslice.DriverResources) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.withdrawn {
		return nil
	}
	s.resources = &resources
	if s.controller != nil {
		s.controller.Update(s.resources)
		return nil
	}
	return s.start()
}

// start starts a controller. mu must be held.
func (s *nodeSlices) start() error {
	if s.owner == "" {
		ctx, cancel := context.WithTimeout(s.ctx, ownerInterval)
		defer cancel()
		if node, err := s.options.KubeClient.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{}); err == nil {
			s.owner = node.UID
		}
	}
	options := s.options
	options.DriverName = s.driver
	// Without a UID the controller looks it up.
	options.Owner = &resourceslice.Owner{APIVersion: "v1", Kind: "Node", Name: s.node, UID: s.owner}
	options.Resources = s.resources
	controller, err := resourceslice.StartController(s.ctx, options)
	if err != nil {
		return fmt.Errorf("start the controller of ResourceSlices: %w", err)
	}
	s.controller, s.made = controller, 0
	return nil
}

// follow compares the owner with the Node whenever slices were made again, until ctx ends.
func (s *nodeSlices) follow(ctx context.Context, interval time.Duration) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		if err := s.compare(ctx); err != nil && ctx.Err() == nil {
			klog.FromContext(ctx).Error(err, "Could not compare the owner of the ResourceSlices with the node's UID")
		}
	}
}

// compare replaces the controller if slices were made since the last call and the Node has another UID.
func (s *nodeSlices) compare(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.controller == nil {
		return nil
	}
	made := s.controller.GetStats().NumCreates
	if made == s.made {
		return nil
	}
	node, err := s.options.KubeClient.CoreV1().Nodes().Get(ctx, s.node, metav1.GetOptions{})
	if apierrors.IsNotFound(err) { // until it registers again
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up node %s, which owns its ResourceSlices: %w", s.node, err)
	}
	s.made = made
	if node.UID == s.owner {
		return nil
	}
	klog.FromContext(ctx).Info("The node's ResourceSlices get another owner: it was registered again under its name", "node", s.node,
		"uid", node.UID, "before", s.owner)
	s.owner = node.UID
	s.controller.Stop()
	return errors.Join(s.removeOthers(ctx), s.start())
}

// removeOthers deletes the node's slices that have another owner than s.owner. The next controller would keep them until the garbage
// collector deletes them, and make them again after its delay of 30 s.
func (s *nodeSlices) removeOthers(ctx context.Context) error {
	ours := func(o metav1.OwnerReference) bool { return o.UID == s.owner }
	return s.delete(ctx, "whose owner is an earlier Node", func(slice *resourceapi.ResourceSlice) bool {
		return !slices.ContainsFunc(slice.OwnerReferences, ours)
	})
}

// delete deletes those of the driver's slices of the node that which selects; why stands in its error.
func (s *nodeSlices) delete(ctx context.Context, why string, which func(*resourceapi.ResourceSlice) bool) error {
	api := s.options.KubeClient.ResourceV1().ResourceSlices()
	selector := fields.Set{resourceapi.ResourceSliceSelectorNodeName: s.node, resourceapi.ResourceSliceSelectorDriver: s.driver}
	all, err := api.List(ctx, metav1.ListOptions{FieldSelector: selector.String()})
	if err != nil {
		return fmt.Errorf("list the ResourceSlices of node %s: %w", s.node, err)
	}
	for i := range all.Items {
		slice := &all.Items[i]
		if slice.Spec.Driver != s.driver || !which(slice) {
			continue
		}
		if err := api.Delete(ctx, slice.Name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return fmt.Errorf("delete ResourceSlice %s, %s: %w", slice.Name, why, err)
		}
	}
	return nil
}

// stop ends the controller. The slices stay.
func (s *nodeSlices) stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.controller.Stop() // nil is allowed
}
