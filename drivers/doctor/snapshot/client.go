package snapshot

import (
	"fmt"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"gpufabric.io/drivers/api/gpufabric/v1alpha1"
	"gpufabric.io/drivers/api/resource/v1beta1"
)

// agent is the reader's name in the API server's audit log.
const agent = "gpufabric-doctor"

const (
	// A Snapshot of 1,008 nodes needs almost 200 requests, which would take 40 s with the client's own limit of 5 a second. The API
	// server has its own fairness.
	queriesPerSecond = 50
	burst            = 150
)

// Reader reads a cluster with one user's rights.
type Reader struct {
	url       string
	timeout   time.Duration
	meter     *meter
	discovery *discovery.DiscoveryClient
	client    client.Client
	config    *rest.Config
}

// NewReader makes a Reader. It does not send a request.
func NewReader(config *rest.Config, scope Scope) (*Reader, error) {
	r := &Reader{url: config.Host, timeout: scope.Timeout, meter: &meter{}}
	if r.timeout <= 0 {
		r.timeout = DefaultTimeout
	}
	kinds, err := Scheme()
	if err != nil {
		return nil, err
	}
	bounded := rest.AddUserAgent(rest.CopyConfig(config), agent)
	bounded.QPS, bounded.Burst = queriesPerSecond, burst
	bounded.Wrap(r.meter.wrap)
	bounded.Timeout = r.timeout
	r.config = bounded
	if r.discovery, err = discovery.NewDiscoveryClientForConfig(bounded); err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	if r.client, err = client.New(bounded, client.Options{Scheme: kinds, Mapper: mapper()}); err != nil {
		return nil, fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	return r, nil
}

// Scheme has the kinds that a Snapshot holds.
func Scheme() (*runtime.Scheme, error) {
	kinds := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{scheme.AddToScheme, v1alpha1.AddToScheme, v1beta1.AddToScheme} {
		if err := add(kinds); err != nil {
			return nil, fmt.Errorf("register kinds: %w", err)
		}
	}
	return kinds, nil
}

// crds is the kind of CustomResourceDefinitions, without their schemas.
func crds() schema.GroupVersionKind {
	return schema.GroupVersionKind{Group: "apiextensions.k8s.io", Version: "v1", Kind: "CustomResourceDefinition"}
}

// mapper maps kinds to resources without a request: an API server that lacks some of them still serves the others.
func mapper() meta.RESTMapper {
	m := meta.NewDefaultRESTMapper(nil)
	add := func(version schema.GroupVersion, scope meta.RESTScope, kinds ...string) {
		for _, kind := range kinds {
			m.Add(version.WithKind(kind), scope)
		}
	}
	add(corev1.SchemeGroupVersion, meta.RESTScopeRoot, "Node", "Namespace")
	add(corev1.SchemeGroupVersion, meta.RESTScopeNamespace, "Pod", "Event", "ResourceQuota")
	add(resourceapi.SchemeGroupVersion, meta.RESTScopeRoot, "ResourceSlice", "DeviceClass")
	add(resourceapi.SchemeGroupVersion, meta.RESTScopeNamespace, "ResourceClaim", "ResourceClaimTemplate")
	add(appsv1.SchemeGroupVersion, meta.RESTScopeNamespace, "DaemonSet", "Deployment")
	add(coordinationv1.SchemeGroupVersion, meta.RESTScopeNamespace, "Lease")
	add(admissionv1.SchemeGroupVersion, meta.RESTScopeRoot, "ValidatingWebhookConfiguration")
	add(rbacv1.SchemeGroupVersion, meta.RESTScopeRoot, "ClusterRoleBinding")
	add(crds().GroupVersion(), meta.RESTScopeRoot, crds().Kind)
	add(v1beta1.SchemeGroupVersion(), meta.RESTScopeNamespace, "ComputeDomain")
	add(v1alpha1.SchemeGroupVersion(), meta.RESTScopeRoot, "RDMAPool", "MIGLayout", "VGPUProfile")
	return m
}
