// Package manifests applies and deletes YAML files as kubectl would, in process.
package manifests

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/util/yaml"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
)

// fieldManager owns the fields that Apply writes.
const fieldManager = "simcluster"

// Client applies manifests to one cluster.
type Client struct {
	objects dynamic.Interface
	mapper  *restmapper.DeferredDiscoveryRESTMapper
}

// NewClient makes a client. It discovers the cluster's kinds as it needs them.
func NewClient(config *rest.Config) (*Client, error) {
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for manifests: %w", err)
	}
	kinds, err := discovery.NewDiscoveryClientForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for manifests: %w", err)
	}
	return &Client{objects: objects, mapper: restmapper.NewDeferredDiscoveryRESTMapper(memory.NewMemCacheClient(kinds))}, nil
}

// Objects is the client beneath, for kinds without Go types.
func (c *Client) Objects() dynamic.Interface { return c.objects }

// Read decodes a file's objects.
func Read(path string) ([]*unstructured.Unstructured, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read manifests: %w", err)
	}
	objects, err := Parse(content)
	if err != nil {
		return nil, fmt.Errorf("read manifests %s: %w", path, err)
	}
	return objects, nil
}

// Parse decodes YAML documents and skips empty ones.
func Parse(content []byte) ([]*unstructured.Unstructured, error) {
	const bufferSize = 4096 // only used to distinguish YAML from JSON
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(content), bufferSize)
	var objects []*unstructured.Unstructured
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects, nil
		}
		if err != nil {
			return nil, fmt.Errorf("document %d: %w", len(objects)+1, err)
		}
		if len(object.Object) > 0 {
			objects = append(objects, object)
		}
	}
}

// Missing names the kinds of the objects that the cluster does not serve, each once.
func (c *Client) Missing(objects []*unstructured.Unstructured) ([]string, error) {
	var missing []string
	seen := map[string]bool{}
	for _, object := range objects {
		kind := object.GroupVersionKind()
		_, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
		switch {
		case meta.IsNoMatchError(err):
			if name := kind.Kind + "." + kind.Group; !seen[name] {
				seen[name] = true
				missing = append(missing, name)
			}
		case err != nil:
			return nil, fmt.Errorf("ask the cluster for its kinds: %w", err)
		}
	}
	return missing, nil
}

// Apply applies the objects in order. Objects without a namespace go to the given one, if their kind has namespaces.
func (c *Client) Apply(ctx context.Context, namespace string, objects ...*unstructured.Unstructured) error {
	for _, object := range objects {
		resource, err := c.resource(object, namespace)
		if err != nil {
			return err
		}
		if _, err := resource.Apply(ctx, object.GetName(), object, metav1.ApplyOptions{FieldManager: fieldManager, Force: true}); err != nil {
			return fmt.Errorf("apply %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

// Delete deletes the objects with their dependents, the last object first. A missing object is no error.
func (c *Client) Delete(ctx context.Context, namespace string, objects ...*unstructured.Unstructured) error {
	foreground := metav1.DeletePropagationForeground
	for i := len(objects) - 1; i >= 0; i-- {
		object := objects[i]
		resource, err := c.resource(object, namespace)
		if err != nil {
			return err
		}
		if err := resource.Delete(ctx, object.GetName(), metav1.DeleteOptions{PropagationPolicy: &foreground}); err != nil &&
			!apierrors.IsNotFound(err) {
			return fmt.Errorf("delete %s %s: %w", object.GetKind(), object.GetName(), err)
		}
	}
	return nil
}

func (c *Client) resource(object *unstructured.Unstructured, namespace string) (dynamic.ResourceInterface, error) {
	kind := object.GroupVersionKind()
	mapping, err := c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	if meta.IsNoMatchError(err) {
		c.mapper.Reset() // a CRD may have been added since
		mapping, err = c.mapper.RESTMapping(kind.GroupKind(), kind.Version)
	}
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", kind.Kind, object.GetName(), err)
	}
	if mapping.Scope.Name() == meta.RESTScopeNameRoot {
		return c.objects.Resource(mapping.Resource), nil
	}
	if object.GetNamespace() != "" {
		namespace = object.GetNamespace()
	}
	return c.objects.Resource(mapping.Resource).Namespace(namespace), nil
}
