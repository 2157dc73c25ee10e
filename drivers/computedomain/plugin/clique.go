package plugin

import (
	"context"
	"errors"
	"fmt"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/api/resource/v1beta1"
	"gpufabric.io/drivers/computedomain"
	"gpufabric.io/drivers/node/observed"
)

// clique is the ComputeDomain that represents the node's clique, with the table of its channels. It lies in the controller's namespace: a
// table that a tenant writes into the status of a ComputeDomain of its own does not count here.
type clique struct {
	// wanted is true while it is followed. Without a claim for a channel of the clique a node has no use for it.
	wanted observed.Value[bool]
	object observed.Value[*v1beta1.ComputeDomain]
}

// domainWatcher calls changed with a domain now and whenever it changes (computedomain.Client).
type domainWatcher interface {
	Watch(ctx context.Context, namespace, name string, changed func(*v1beta1.ComputeDomain))
}

// follow keeps the clique current until ctx ends, as the node goes from one to another.
func (c *clique) follow(ctx context.Context, current *observed.Value[fabric], client domainWatcher, namespace string) {
	for ctx.Err() == nil {
		f, fabricChanged := current.Get()
		wanted, wantedChanged := c.wanted.Get()
		watching, stop := context.WithCancel(ctx)
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if !wanted || f.clique == "" {
				return
			}
			client.Watch(watching, namespace, computedomain.CliqueName(f.clique), func(domain *v1beta1.ComputeDomain) {
				switch {
				case domain == nil || computedomain.CliqueOf(domain, namespace) != f.clique:
					domain = nil
				case domain.Status.IMEX == "":
					domain = domain.DeepCopy() // the watch's own is not changed
					computedomain.Recall(domain, namespace)
				}
				c.object.Set(domain)
			})
		}()
		stay := true
		for stay {
			select {
			case <-fabricChanged:
				var now fabric
				now, fabricChanged = current.Get()
				stay = now.clique == f.clique
			case <-wantedChanged:
				stay = false
			case <-ctx.Done():
				stay = false
			}
		}
		stop()
		<-ended
		c.object.Set(nil)
	}
}

// mostHolders is how many domains can be named on a device, beside its other attributes.
const mostHolders = resourceapi.ResourceSliceMaxAttributesAndCapacitiesPerDevice - 8

// holders are the domains that have all of a node's channels, by the table of a clique. It returns none where a channel is free.
// Where they are too many to be named, pods of other domains wait on their node.
func holders(object *v1beta1.ComputeDomain, channels int) []types.UID {
	if object == nil || len(object.Status.Channels) > mostHolders {
		return nil
	}
	full := channels > 0 && len(object.Status.Channels) >= channels
	var out []types.UID
	for _, channel := range object.Status.Channels {
		full = full || channel.All
		out = append(out, types.UID(channel.DomainID))
	}
	if !full {
		return nil
	}
	return out
}

// cliqueChannel is a domain's entry in the table of a clique.
type cliqueChannel struct {
	channel v1beta1.ComputeDomainChannel
	// daemons is the domain whose daemons serve the clique, and mode is how these run.
	daemons types.UID
	mode    v1beta1.IMEXMode
}

// await returns the entry of a domain in the clique's table. Until there is one it reports the missing condition to waiting. When
// ctx ends first, the error names it.
func (c *clique) await(ctx context.Context, id string, domain types.UID, waiting func(message string)) (cliqueChannel, error) {
	for {
		object, changed := c.object.Get()
		missing := "the controller has made no ComputeDomain for clique " + id + " yet"
		if object != nil && object.Labels[v1beta1.LabelClique] == id {
			if found := computedomain.ChannelOf(object, domain); found != nil {
				return cliqueChannel{channel: *found, daemons: object.UID, mode: object.Status.IMEX}, nil
			}
			missing = fmt.Sprintf("it has no IMEX channel of clique %s yet, of which %d are held", id, len(object.Status.Channels))
		}
		waiting(missing)
		select {
		case <-changed:
		case <-ctx.Done():
			return cliqueChannel{}, errors.New(missing)
		}
	}
}
