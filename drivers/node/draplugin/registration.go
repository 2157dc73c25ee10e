package draplugin

import (
	"fmt"
	"sync"
	"time"

	registerapi "k8s.io/kubelet/pkg/apis/pluginregistration/v1"
)

// noticePatience is how long a kubelet may take to detect a plugin. It watches the directory of the plugin's socket, and answers within
// milliseconds. A kubelet that starts and gets no inotify instance logs that its watcher failed, continues, and never detects a plugin.
const noticePatience = time.Minute

// registration is the kubelet's last answer to a plugin's registration. The helper library keeps it too, but without a lock. The answer
// outlives the kubelet that gave it: a plugin does not see that the kubelet was restarted and that the new one has not noticed it.
type registration struct {
	mu sync.Mutex
	// since is the time from which the plugin's socket is in the kubelet's directory; zero before.
	since    time.Time
	answered bool
	refused  bool
	why      string
}

// offered starts the time in which the kubelet has to detect the plugin.
func (r *registration) offered(now time.Time) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.since = now
}

// observe stores the kubelet's answer.
func (r *registration) observe(status *registerapi.RegistrationStatus) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.answered, r.refused, r.why = true, !status.GetPluginRegistered(), status.GetError()
}

// Registered returns an error where the kubelet has refused the plugin, or has not noticed it for noticePatience, and so sends it no
// claims.
func (p *Plugin) Registered() error {
	r := &p.registration
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.refused:
		return fmt.Errorf("the kubelet refuses to register driver %s: %q (its log has more; it tries again by itself)", p.config.Driver, r.why)
	case !r.answered && !r.since.IsZero() && time.Since(r.since) > noticePatience:
		return fmt.Errorf("the kubelet has not detected driver %s for %s: look for \"plugin watcher\" in its log (too many open files: raise "+
			"fs.inotify.max_user_instances on the node), and restart the kubelet", p.config.Driver, time.Since(r.since).Round(time.Second))
	}
	return nil
}
