package cluster

import (
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/discovery/cached/memory"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/restmapper"
	"k8s.io/client-go/tools/clientcmd"
	api "k8s.io/client-go/tools/clientcmd/api"
)

// Getter hands a Client to Helm, which asks for configuration, discovery and a default namespace through this interface.
type Getter struct {
	config    *rest.Config
	namespace string
	cache     discovery.CachedDiscoveryInterface
}

// Getter returns a RESTClientGetter for one namespace with its own discovery cache, so that CRDs added by one operation never leave
// another with an outdated view.
func (c *Client) Getter(namespace string) (*Getter, error) {
	d, err := discovery.NewDiscoveryClientForConfig(c.Config)
	if err != nil {
		return nil, err
	}
	return &Getter{config: c.Config, namespace: namespace, cache: memory.NewMemCacheClient(d)}, nil
}

// ToRESTConfig returns a copy of the configuration.
func (g *Getter) ToRESTConfig() (*rest.Config, error) { return rest.CopyConfig(g.config), nil }

// ToDiscoveryClient returns the cached discovery client.
func (g *Getter) ToDiscoveryClient() (discovery.CachedDiscoveryInterface, error) { return g.cache, nil }

// ToRESTMapper returns a mapper that discovers kinds at its first use.
func (g *Getter) ToRESTMapper() (meta.RESTMapper, error) {
	return restmapper.NewDeferredDiscoveryRESTMapper(g.cache), nil
}

// ToRawKubeConfigLoader gives Helm the namespace; the connection itself comes from ToRESTConfig.
func (g *Getter) ToRawKubeConfigLoader() clientcmd.ClientConfig {
	return clientcmd.NewDefaultClientConfig(api.Config{}, &clientcmd.ConfigOverrides{Context: api.Context{Namespace: g.namespace}})
}
