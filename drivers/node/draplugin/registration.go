package draplugin

import (
	"fmt"
	"sync"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// registration is the kubelet's answer to a plugin's registration. The helper library keeps it too, but without a lock.
type registration struct {
	mu      sync.Mutex
	refused bool
	why     string
}

// told stores the kubelet's answer.
func (r *registration) told(status *registerapi.RegistrationStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refused, r.why = !status.GetPluginRegistered(), status.GetError()
}

// Registered returns an error where the kubelet has refused the plugin and so sends it no claims. A plugin that the kubelet has not
// noticed yet is not refused.
func (p *Plugin) Registered() error {
	p.registration.mu.Lock()
	defer p.registration.mu.Unlock()
	if !p.registration.refused {
		return nil
	}
	return fmt.Errorf("the kubelet refuses to register driver %s: %q (its log says more; it tries again by itself)", p.config.Driver,
		p.registration.why)
}
