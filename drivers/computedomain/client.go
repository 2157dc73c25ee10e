package computedomain

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	watchtools "k8s.io/client-go/tools/watch"

	"gpufabric.io/drivers/api/resource/v1beta1"
)

const resource = "computedomains"

// Client reads ComputeDomains, with as small a client as a node needs.
type Client struct {
	rest rest.Interface
}

// NewClient makes a client.
func NewClient(config *rest.Config) (*Client, error) {
	scheme := runtime.NewScheme()
	if err := v1beta1.AddToScheme(scheme); err != nil {
		return nil, fmt.Errorf("make a client for compute domains: %w", err)
	}
	config = rest.CopyConfig(config)
	version := v1beta1.SchemeGroupVersion()
	config.GroupVersion, config.APIPath = &version, "/apis"
	config.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	config.ContentType, config.AcceptContentTypes = runtime.ContentTypeJSON, runtime.ContentTypeJSON
	client, err := rest.RESTClientFor(config)
	if err != nil {
		return nil, fmt.Errorf("make a client for compute domains at %s: %w", config.Host, err)
	}
	return &Client{rest: client}, nil
}

// ByUID finds the domain with a UID in a namespace. hint is its name where that is known; it may be wrong. The result is nil where
// the namespace has no such domain.
func (c *Client) ByUID(ctx context.Context, namespace, hint string, uid types.UID) (*v1beta1.ComputeDomain, error) {
	if hint != "" {
		domain := &v1beta1.ComputeDomain{}
		err := c.rest.Get().Namespace(namespace).Resource(resource).Name(hint).Do(ctx).Into(domain)
		switch {
		case err == nil && domain.UID == uid:
			return domain, nil
		case err != nil && !apierrors.IsNotFound(err):
			return nil, fmt.Errorf("look up ComputeDomain %s/%s: %w", namespace, hint, err)
		}
	}
	list := &v1beta1.ComputeDomainList{}
	if err := c.rest.Get().Namespace(namespace).Resource(resource).Do(ctx).Into(list); err != nil {
		return nil, fmt.Errorf("list the ComputeDomains of namespace %s: %w", namespace, err)
	}
	for i := range list.Items {
		if list.Items[i].UID == uid {
			return &list.Items[i], nil
		}
	}
	return nil, nil
}

// Watch calls changed with the domain of that name now and whenever it changes, until ctx ends; with nil when there is none.
func (c *Client) Watch(ctx context.Context, namespace, name string, changed func(*v1beta1.ComputeDomain)) {
	source := cache.NewListWatchFromClient(c.rest, resource, namespace, fields.OneTermEqualSelector(metav1.ObjectNameField, name))
	_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
		ListerWatcher: source,
		ObjectType:    &v1beta1.ComputeDomain{},
		Handler: cache.ResourceEventHandlerFuncs{
			AddFunc:    func(obj any) { changed(obj.(*v1beta1.ComputeDomain)) },
			UpdateFunc: func(_, obj any) { changed(obj.(*v1beta1.ComputeDomain)) },
			DeleteFunc: func(any) { changed(nil) },
		},
	})
	informer.RunWithContext(ctx)
}

// Await calls done with all ComputeDomains of all namespaces, now and whenever one changes, until done returns true or an error, or
// ctx ends. A cluster without the kind has none.
func (c *Client) Await(ctx context.Context, done func([]*v1beta1.ComputeDomain) (bool, error)) error {
	// An informer would repeat the request until ctx ends.
	switch err := c.rest.Get().Resource(resource).Do(ctx).Error(); {
	case apierrors.IsNotFound(err):
		_, err := done(nil)
		return err
	case err != nil:
		return fmt.Errorf("list ComputeDomains: %w", err)
	}
	all := cache.NewListWatchFromClient(c.rest, resource, metav1.NamespaceAll, fields.Everything())
	var read cache.Store
	look := func() (bool, error) {
		domains := make([]*v1beta1.ComputeDomain, 0, len(read.ListKeys()))
		for _, one := range read.List() {
			domains = append(domains, one.(*v1beta1.ComputeDomain))
		}
		slices.SortFunc(domains, func(a, b *v1beta1.ComputeDomain) int {
			return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
		})
		return done(domains)
	}
	_, err := watchtools.UntilWithSync(ctx, all, &v1beta1.ComputeDomain{}, func(store cache.Store) (bool, error) {
		read = store
		return look()
	}, func(watch.Event) (bool, error) { return look() })
	return err
}
