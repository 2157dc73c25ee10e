package offer

import (
	"strings"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/node/cdi"
)

// SpecName is the pool's name in the CDI directory, where one spec is a pool's as another is a claim's.
func (o *Offer) SpecName() types.UID {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.specName()
}

// Spec is the file of the pool's CDI spec, empty where its units are not handed out by CDI. It implements deviceplugin.Specified.
func (o *Offer) Spec() string {
	if o.cdi == nil {
		return ""
	}
	return o.cdi.Path(o.SpecName())
}

func (o *Offer) specName() types.UID {
	// A resource's prefix is a domain, which has no underscore: two resources never have one name.
	return types.UID("pool-" + strings.ReplaceAll(o.pool.Resource(), "/", "_"))
}

// WriteSpec brings the pool's CDI spec in line with its HCAs: a device for each. It does nothing without a CDI directory. Two pools of one
// pod do not collide: their devices have different names, and a device node that both bring is one to the runtime.
func (o *Offer) WriteSpec() error {
	if o.cdi == nil {
		return nil
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	var devices []cdi.Device
	for _, key := range o.keys() {
		m := o.members[key]
		if m.gone {
			continue
		}
		nodes, err := o.nodes(m.HCA)
		if err != nil {
			continue // Allocate says why.
		}
		d := cdi.Device{Name: key}
		d.Edits.DeviceNodes = o.dev.CDI(append(nodes, o.common()...))
		devices = append(devices, d)
	}
	return o.cdi.Write(o.specName(), devices)
}
