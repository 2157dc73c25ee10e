package controller

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
)

// consumers caches the pods for which claims of a channel are reserved, by namespace and domain. Claims are not watched: that would be all
// claims of the cluster. Those of a namespace are listed when a domain there is being deleted, once for all domains that wait: a list for
// each of 560 domains would read 10,080 claims 560 times. Only the names of pods are kept.
type consumers struct {
	live client.Reader
	now  func() time.Time

	mu         sync.Mutex
	namespaces map[string]*namespaceConsumers
}

type namespaceConsumers struct {
	mu    sync.Mutex
	begun time.Time // when the last list was requested
	pods  map[types.UID][]string
}

// keptFor is how long a namespace's claims stay cached without a request.
const keptFor = time.Minute

// of returns the pods that use a domain, from a list requested at that time or later.
func (c *consumers) of(ctx context.Context, domain *v1beta1.ComputeDomain, notBefore time.Time) ([]string, error) {
	n := c.namespace(domain.Namespace)
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.begun.IsZero() || n.begun.Before(notBefore) {
		begun := c.now()
		pods, err := c.read(ctx, domain.Namespace)
		if err != nil {
			return nil, err
		}
		n.begun, n.pods = begun, pods
	}
	return slices.Clone(n.pods[lower(domain.UID)]), nil
}

func (c *consumers) namespace(name string) *namespaceConsumers {
	c.mu.Lock()
	defer c.mu.Unlock()
	for other, n := range c.namespaces {
		if other == name || !n.mu.TryLock() {
			continue // it is in use
		}
		if c.now().Sub(n.begun) > keptFor {
			delete(c.namespaces, other)
		}
		n.mu.Unlock()
	}
	if c.namespaces == nil {
		c.namespaces = map[string]*namespaceConsumers{}
	}
	if c.namespaces[name] == nil {
		c.namespaces[name] = &namespaceConsumers{}
	}
	return c.namespaces[name]
}

func (c *consumers) read(ctx context.Context, namespace string) (map[types.UID][]string, error) {
	var claims resourceapi.ResourceClaimList
	if err := c.live.List(ctx, &claims, client.InNamespace(namespace)); err != nil {
		return nil, fmt.Errorf("look for pods that use the domain: %w", err)
	}
	pods := map[types.UID][]string{}
	for i := range claims.Items {
		claim := &claims.Items[i]
		if len(claim.Status.ReservedFor) == 0 {
			continue
		}
		for _, domain := range domainsOfClaim(claim) {
			for _, consumer := range claim.Status.ReservedFor {
				pods[domain] = append(pods[domain], consumer.Name)
			}
		}
	}
	for domain := range pods {
		slices.Sort(pods[domain])
		pods[domain] = slices.Compact(pods[domain])
	}
	return pods, nil
}

// domainsOfClaim are the domains of whose channels a claim is.
func domainsOfClaim(claim *resourceapi.ResourceClaim) []types.UID {
	var domains []types.UID
	for _, config := range claim.Spec.Devices.Config {
		if config.Opaque == nil || config.Opaque.Driver != computedomain.Driver {
			continue
		}
		decoded, err := v1beta1.Decode(config.Opaque.Parameters.Raw)
		if err != nil {
			continue
		}
		if channel, ok := decoded.(*v1beta1.ComputeDomainChannelConfig); ok {
			domains = append(domains, lower(types.UID(channel.DomainID)))
		}
	}
	slices.Sort(domains)
	return slices.Compact(domains)
}

// lower is a UID as claims are compared: a user may write one in capitals.
func lower(uid types.UID) types.UID { return types.UID(strings.ToLower(string(uid))) }
