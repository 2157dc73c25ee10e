package metrics

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	authorizationv1 "k8s.io/api/authorization/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/util/cert"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/node/httpserver"
)

const (
	// remembered is how long the API server's answer about a token is cached. A scraper comes about every 15 s.
	remembered = time.Minute
	// mostTokens bounds the number of cached tokens, separately for accepted and refused ones: every client of the port may send new tokens.
	mostTokens = 64
	// reviewPatience bounds one request to the API server. Prometheus gives a scrape ten seconds.
	reviewPatience = 5 * time.Second
	// longestToken is longer than any service account's token, which has about 1 kB.
	longestToken = 16 << 10
)

// Access serves metrics only to clients that the cluster authorizes, as kube-rbac-proxy does. The caller must show a token that the
// API server accepts (TokenReview), and be allowed to get the path /metrics (SubjectAccessReview). The role's own client makes the
// two reviews: controller-runtime's filters for the same task would load k8s.io/apiserver into every role's memory.
type Access struct {
	Client kubernetes.Interface
	// Now is the time, for tests; nil: time.Now.
	Now func() time.Time

	mu sync.Mutex
	// allowed are the accepted tokens; each is checked again after a minute. refused are the others, which never displace an accepted
	// one.
	allowed, refused map[tokenSum]verdict
	reviews          httpserver.TokenReviews
}

// tokenSum is the checksum of a token and a path.
type tokenSum [sha256.Size]byte

// errTooMany is returned for an address that has sent too many unknown tokens.
var errTooMany = errors.New("too many unknown tokens: try again in some seconds")

// verdict is the API server's answer about a token.
type verdict struct {
	status int // http.StatusOK, StatusUnauthorized or StatusForbidden
	user   string
	until  time.Time
}

// Guard is an Access where the check is enabled, else nil.
func Guard(enabled bool, client kubernetes.Interface) *Access {
	if !enabled {
		return nil
	}
	return &Access{Client: client}
}

// Wrap lets a handler answer only callers that may read its path.
func (a *Access) Wrap(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		scheme, token, _ := strings.Cut(r.Header.Get("Authorization"), " ")
		token = strings.TrimSpace(token)
		if !strings.EqualFold(scheme, "bearer") || token == "" || len(token) > longestToken {
			w.Header().Set("WWW-Authenticate", `Bearer realm="gpufabric"`)
			http.Error(w, "metrics need a token of this cluster (Authorization: Bearer)", http.StatusUnauthorized)
			return
		}
		v, err := a.verdict(r.Context(), token, r.URL.Path, r.RemoteAddr)
		switch {
		case errors.Is(err, errTooMany):
			http.Error(w, err.Error(), http.StatusTooManyRequests)
		case err != nil:
			klog.FromContext(r.Context()).Error(err, "Metrics are refused while the API server cannot check tokens")
			http.Error(w, "the API server does not answer access reviews", http.StatusServiceUnavailable)
		case v.status == http.StatusUnauthorized:
			http.Error(w, "the API server does not accept this token", v.status)
		case v.status == http.StatusForbidden:
			http.Error(w, fmt.Sprintf("%q may not get %s: bind it to the ClusterRole gpufabric-metrics-reader", v.user, r.URL.Path), v.status)
		default:
			next.ServeHTTP(w, r)
		}
	})
}

func (a *Access) now() time.Time {
	if a.Now != nil {
		return a.Now()
	}
	return time.Now()
}

// verdict queries the API server, or uses the cached answer. It does not cache errors.
func (a *Access) verdict(ctx context.Context, token, path, from string) (verdict, error) {
	key := tokenSum(sha256.Sum256([]byte(token + "\x00" + path)))
	if v, err := a.remember(key, from); err != nil || v.status != 0 {
		return v, err
	}
	ctx, cancel := context.WithTimeout(ctx, reviewPatience)
	defer cancel()
	v, err := a.review(ctx, token, path)
	if err != nil {
		return v, err
	}
	v.until = a.now().Add(remembered)
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.allowed, key)
	kept := &a.refused
	if v.status == http.StatusOK {
		kept = &a.allowed
	}
	if *kept == nil || len(*kept) >= mostTokens {
		*kept = map[tokenSum]verdict{}
	}
	(*kept)[key] = v
	return v, nil
}

// remember returns the API server's verdict on a token within the last minute, or a verdict without a status if the token must be checked.
// A token that was accepted before may be checked at any time, others only at a limited rate.
func (a *Access) remember(key tokenSum, from string) (verdict, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	now := a.now()
	known, before := a.allowed[key]
	if !before {
		known = a.refused[key]
	}
	switch {
	case now.Before(known.until):
		return known, nil
	case !before && !a.reviews.Allow(from, now):
		return verdict{}, errTooMany
	}
	return verdict{}, nil
}

func (a *Access) review(ctx context.Context, token, path string) (verdict, error) {
	who, err := a.Client.AuthenticationV1().TokenReviews().Create(ctx,
		&authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token}}, metav1.CreateOptions{})
	if err != nil {
		return verdict{}, fmt.Errorf("review a token: %w", err)
	}
	if !who.Status.Authenticated {
		return verdict{status: http.StatusUnauthorized}, nil
	}
	user := who.Status.User
	extra := map[string]authorizationv1.ExtraValue{}
	for key, values := range user.Extra {
		extra[key] = authorizationv1.ExtraValue(values)
	}
	may, err := a.Client.AuthorizationV1().SubjectAccessReviews().Create(ctx, &authorizationv1.SubjectAccessReview{
		Spec: authorizationv1.SubjectAccessReviewSpec{User: user.Username, UID: user.UID, Groups: user.Groups, Extra: extra,
			NonResourceAttributes: &authorizationv1.NonResourceAttributes{Path: path, Verb: "get"}}}, metav1.CreateOptions{})
	if err != nil {
		return verdict{}, fmt.Errorf("review whether %q may get %s: %w", user.Username, path, err)
	}
	if !may.Status.Allowed {
		return verdict{status: http.StatusForbidden, user: user.Username}, nil
	}
	return verdict{status: http.StatusOK, user: user.Username}, nil
}

// ownCertificate is a TLS configuration with a new certificate. It keeps tokens secret on the network. Clients cannot verify it, as with
// kube-rbac-proxy's own.
func ownCertificate() (*tls.Config, error) {
	certificate, key, err := cert.GenerateSelfSignedCertKey("gpufabric-metrics", nil, nil)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for metrics: %w", err)
	}
	pair, err := tls.X509KeyPair(certificate, key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for metrics: %w", err)
	}
	return &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{pair}}, nil
}
