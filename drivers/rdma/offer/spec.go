package offer

import (
	"context"
	"fmt"
	"hash/fnv"
	"strings"

	"k8s.io/apimachinery/pkg/types"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"gpufabric.io/drivers/node/cdi"
)

// SpecName is the pool's name in the CDI directory, where each spec belongs to a pool, as elsewhere to a claim.
func (o *Offer) SpecName() types.UID {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.specName()
}

// Spec is the file of the pool's CDI spec, empty where its units do not use CDI. It implements deviceplugin.Specified.
func (o *Offer) Spec() string {
	if o.cdi == nil {
		return ""
	}
	return o.cdi.Path(o.SpecName())
}

func (o *Offer) specName() types.UID {
	// A resource's prefix is a domain, which has no underscore: two resources never get the same name.
	return types.UID("pool-" + strings.ReplaceAll(o.pool.Resource(), "/", "_"))
}

// cdiName makes the name of an HCA's device in the pool's spec from the HCA's key. A scalable function's key has a slash, and a software
// device's name may have any characters. In a name of CDI they become dashes, and a hash keeps such names apart.
func cdiName(key string) string {
	name := strings.Map(func(r rune) rune {
		if 'a' <= r && r <= 'z' || 'A' <= r && r <= 'Z' || '0' <= r && r <= '9' || strings.ContainsRune("_-.:", r) {
			return r
		}
		return '-'
	}, key)
	if name == key && parser.ValidateDeviceName("x"+name) == nil {
		return name
	}
	hash := fnv.New64a()
	_, _ = hash.Write([]byte(key))
	return fmt.Sprintf("%s-%016x", name, hash.Sum64())
}

// WriteSpec updates the pool's CDI spec for its HCAs: one device for each. It does nothing without a CDI directory. Two pools of
// one pod do not collide: their devices have different names, and the runtime merges equal device nodes.
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
		nodes, err := o.nodes(m)
		if err != nil {
			continue // Allocate reports why.
		}
		d := cdi.Device{Name: cdiName(key)}
		d.Edits.DeviceNodes = o.dev.CDI(append(nodes, o.dev.Common()...))
		devices = append(devices, d)
	}
	return o.cdi.Write(o.specName(), devices)
}

// KeepSpec writes the pool's CDI spec again where somebody removed it. It implements deviceplugin.Keeper.
func (o *Offer) KeepSpec(context.Context) error {
	if o.cdi == nil || o.cdi.Has(o.SpecName()) {
		return nil
	}
	return o.WriteSpec()
}
