package certificates

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/spf13/pflag"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/manager"
)

// Options are the controller's flags for the webhook's certificate.
type Options struct {
	// Namespace and Secret hold the certificate; with an empty Secret none is kept.
	Namespace, Secret string
	// Configuration is the ValidatingWebhookConfiguration whose caBundle is kept.
	Configuration string
	// Hosts are the names by which the API server calls the webhook.
	Hosts []string
	// Life is how long a certificate is valid. It is replaced with a third of that left.
	Life time.Duration
	// Overlap is how long the API server trusts a certificate before it is served. Every API server of the cluster gets it through
	// its watch in that time, within seconds.
	Overlap time.Duration
	// Keep is how long a certificate is trusted after it was replaced. The kubelet brings a changed Secret to a pod within two
	// minutes.
	Keep time.Duration
}

// Bind adds the flags to a flag set.
func (o *Options) Bind(flags *pflag.FlagSet, getenv func(string) string) {
	flags.StringVar(&o.Namespace, "webhook-namespace", getenv("POD_NAMESPACE"), "namespace of --webhook-secret (environment: POD_NAMESPACE)")
	flags.StringVar(&o.Secret, "webhook-secret", "",
		"Secret in which the webhook's certificate is kept and rotated; empty: somebody else does")
	flags.StringVar(&o.Configuration, "webhook-configuration", "gpufabric-webhook",
		"ValidatingWebhookConfiguration whose caBundle follows the certificate")
	flags.StringSliceVar(&o.Hosts, "webhook-host", nil, "host names by which the API server calls the webhook")
	flags.DurationVar(&o.Life, "webhook-certificate-life", 90*24*time.Hour,
		"how long a certificate is valid; it is replaced with a third left")
	flags.DurationVar(&o.Overlap, "webhook-certificate-overlap", 10*time.Minute,
		"how long a certificate is in the webhook configuration before it is served")
	flags.DurationVar(&o.Keep, "webhook-certificate-keep", 24*time.Hour, "how long a certificate is known after it was replaced")
}

// Validate returns an error for unusable options.
func (o *Options) Validate() error {
	if o.Secret == "" {
		return nil
	}
	var errs []error
	if o.Namespace == "" {
		errs = append(errs, errors.New("--webhook-namespace is empty: give the controller's own namespace, or set POD_NAMESPACE"))
	}
	if len(o.Hosts) == 0 {
		errs = append(errs, errors.New("--webhook-host is empty: give the name of the webhook's Service, NAME.NAMESPACE.svc"))
	}
	if o.Life <= 0 || o.Overlap <= 0 || o.Overlap*3 >= o.Life {
		errs = append(errs, fmt.Errorf("--webhook-certificate-overlap %s must be less than a third of --webhook-certificate-life %s, and both "+
			"above 0: a certificate is replaced with a third of its life left", o.Overlap, o.Life))
	}
	return errors.Join(errs...)
}

// Adder returns the function that adds the keeper of the certificate to a manager. One controller, the leader, keeps it.
func Adder(o *Options) func(context.Context, ctrl.Manager) error {
	return func(_ context.Context, m ctrl.Manager) error {
		if o.Secret == "" {
			return nil
		}
		client, err := kubernetes.NewForConfig(m.GetConfig())
		if err != nil {
			return fmt.Errorf("make a client for the webhook's certificate: %w", err)
		}
		return m.Add(manager.RunnableFunc((&keeper{Options: *o, client: client, now: time.Now}).run))
	}
}

// keeper keeps the certificate.
type keeper struct {
	Options
	client kubernetes.Interface
	now    func() time.Time
}

// The pauses between failed tries.
const firstRetry, lastRetry = time.Second, time.Minute

// longestWait is the maximum pause between two steps: a timer does not see that the machine's clock was set, or that the machine slept.
const longestWait = time.Hour

// run keeps the certificate until ctx ends: when it is due, and when somebody changes the Secret or the configuration.
func (k *keeper) run(ctx context.Context) error {
	changed := make(chan struct{}, 1)
	var watches sync.WaitGroup
	defer watches.Wait()
	k.watch(ctx, &watches, changed)
	for retry := firstRetry; ; {
		due, err := k.step(ctx)
		wait := due.Sub(k.now())
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			klog.FromContext(ctx).Error(err, "Could not update the webhook's certificate; trying again", "after", retry)
			wait, retry = retry, min(2*retry, lastRetry)
		} else {
			retry = firstRetry
		}
		timer := time.NewTimer(min(max(wait, 0), longestWait))
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-changed:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// watch sends to changed whenever the Secret or the configuration changes, until ctx ends.
func (k *keeper) watch(ctx context.Context, watches *sync.WaitGroup, changed chan<- struct{}) {
	notify := func() {
		select {
		case changed <- struct{}{}:
		default: // a token is there already
		}
	}
	secrets, configurations := k.client.CoreV1().Secrets(k.Namespace), k.client.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	for _, one := range []struct {
		name   string
		object runtime.Object
		list   func(context.Context, metav1.ListOptions) (runtime.Object, error)
		watch  func(context.Context, metav1.ListOptions) (watch.Interface, error)
	}{
		{k.Secret, &corev1.Secret{}, func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) { return secrets.List(ctx, o) },
			secrets.Watch},
		{k.Configuration, &admissionv1.ValidatingWebhookConfiguration{},
			func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
				return configurations.List(ctx, o)
			}, configurations.Watch},
	} {
		// RBAC lets it see this one object, by its selector.
		only := func(o *metav1.ListOptions) {
			o.FieldSelector = fields.OneTermEqualSelector("metadata.name", one.name).String()
		}
		_, informer := cache.NewInformerWithOptions(cache.InformerOptions{
			ListerWatcher: cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
				ListWithContextFunc: func(ctx context.Context, o metav1.ListOptions) (runtime.Object, error) {
					only(&o)
					return one.list(ctx, o)
				},
				WatchFuncWithContext: func(ctx context.Context, o metav1.ListOptions) (watch.Interface, error) {
					only(&o)
					return one.watch(ctx, o)
				},
			}, k.client),
			ObjectType: one.object,
			Handler: cache.ResourceEventHandlerFuncs{
				AddFunc: func(any) { notify() }, UpdateFunc: func(any, any) { notify() }, DeleteFunc: func(any) { notify() },
			},
		})
		watches.Go(func() { informer.RunWithContext(ctx) })
	}
}

// step does the next step, and returns the time of the next call.
func (k *keeper) step(ctx context.Context) (time.Time, error) {
	secret, err := k.client.CoreV1().Secrets(k.Namespace).Get(ctx, k.Secret, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return time.Time{}, fmt.Errorf("store the webhook's certificate in Secret %s/%s, which is missing: helm upgrade makes it again",
			k.Namespace, k.Secret)
	}
	if err != nil {
		return time.Time{}, fmt.Errorf("read the webhook's certificate: %w", err)
	}
	configuration, err := k.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx, k.Configuration, metav1.GetOptions{})
	if err != nil {
		return time.Time{}, fmt.Errorf("read caBundle of the webhook's configuration: %w", err)
	}
	now := k.now()
	held := readState(secret.Data, secret.Annotations)
	advanced, err := held.advance(k.Options, parseBundle(bundleOf(configuration)), now)
	if err != nil {
		return time.Time{}, err
	}
	// The Secret comes first where a certificate is new: otherwise the key could be lost. A served one is in the configuration
	// already.
	if advanced {
		if secret, err = k.save(ctx, secret, held); err != nil {
			return time.Time{}, err
		}
	}
	if err := k.publishBundle(ctx, configuration, held.bundle()); err != nil {
		return time.Time{}, err
	}
	if held.next != nil && held.published.IsZero() {
		held.published = now
		if _, err := k.save(ctx, secret, held); err != nil {
			return time.Time{}, err
		}
	}
	return held.due(k.Options), nil
}

func (k *keeper) save(ctx context.Context, secret *corev1.Secret, s *state) (*corev1.Secret, error) {
	secret = secret.DeepCopy()
	data, annotations := s.write()
	secret.Data = data
	if secret.Annotations == nil {
		secret.Annotations = map[string]string{}
	}
	delete(secret.Annotations, annotationPublished)
	maps.Copy(secret.Annotations, annotations)
	saved, err := k.client.CoreV1().Secrets(k.Namespace).Update(ctx, secret, metav1.UpdateOptions{})
	if err != nil {
		return nil, fmt.Errorf("write the webhook's certificate: %w", err)
	}
	klog.FromContext(ctx).Info("Wrote the webhook's certificate", "ends", s.served.leaf.NotAfter, "next", s.next != nil)
	return saved, nil
}

// bundleOf is the API server's present bundle for the webhook.
func bundleOf(configuration *admissionv1.ValidatingWebhookConfiguration) []byte {
	var all []byte
	for _, webhook := range configuration.Webhooks {
		all = append(all, webhook.ClientConfig.CABundle...)
	}
	return all
}

// publishBundle sets the bundle in every webhook of the configuration.
func (k *keeper) publishBundle(ctx context.Context, configuration *admissionv1.ValidatingWebhookConfiguration, bundle []byte) error {
	configuration = configuration.DeepCopy()
	changed := false
	for i := range configuration.Webhooks {
		if client := &configuration.Webhooks[i].ClientConfig; !bytes.Equal(client.CABundle, bundle) {
			client.CABundle, changed = bundle, true
		}
	}
	if !changed {
		return nil
	}
	if _, err := k.client.AdmissionregistrationV1().ValidatingWebhookConfigurations().Update(ctx, configuration,
		metav1.UpdateOptions{}); err != nil {
		return fmt.Errorf("update caBundle of the webhook's configuration: %w", err)
	}
	return nil
}
