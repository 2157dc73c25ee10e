package console

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"gpufabric.io/drivers/doctor/snapshot"
	"gpufabric.io/drivers/fabric"
	"gpufabric.io/drivers/fabric/reader"
	"gpufabric.io/drivers/node/host"
)

const (
	// pace is the minimum time between two pictures: people do not see more, and 56 domains that form change some hundred objects a
	// second.
	pace = 250 * time.Millisecond
	// share bounds the part of a core that drawing uses: after a picture the next one waits this many times as long as it took.
	share = 4
	// grace is how long a viewer's picture is kept after the last page was closed, so that a reload need not read the cluster again.
	grace = 20 * time.Second
	// keepAlive is how often a silent stream is written to, so that proxies keep it; writeTime is how long a page may take to read.
	keepAlive, writeTime = 15 * time.Second, 30 * time.Second
	// asking limits one token check.
	asking = 10 * time.Second
	// streamsPerViewer is how many pages a viewer may have open.
	streamsPerViewer = 8
	// checks is how many viewers' tokens are checked at once.
	checks = 4
)

// sessions are the present viewers. A token is only kept in its session's client: sessions are found by the token's hash.
type sessions struct {
	ctx      context.Context //nolint:containedctx // sessions outlive the request that begins them, and end with the server
	settings Settings
	asking   chan struct{}
	// examining bounds the answers of the doctor that are made at once.
	examining chan struct{}
	questions questions
	tokens    tokens

	mu      sync.Mutex
	all     map[[sha256.Size]byte]*session
	running sync.WaitGroup
}

func newSessions(ctx context.Context, settings Settings) *sessions {
	return &sessions{ctx: ctx, settings: settings, asking: make(chan struct{}, checks),
		examining: make(chan struct{}, examinations), all: map[[sha256.Size]byte]*session{}}
}

func (s *sessions) wait() { s.running.Wait() }

// about names the owner of the rights with which a page is shown.
type about struct {
	User      string `json:"user,omitempty"`
	Namespace string `json:"namespace,omitempty"`
	// Settled is false while parts of the cluster have neither been read nor refused.
	Settled bool `json:"settled"`
}

var errUnknown = errors.New("the API server rejects this token: it is wrong or has expired")

// who returns the owner of a token, from the API server.
func (s *sessions) who(ctx context.Context, config *rest.Config) (string, error) {
	select {
	case s.asking <- struct{}{}:
		defer func() { <-s.asking }()
	case <-ctx.Done():
		return "", fmt.Errorf("wait for a token check: %w", context.Cause(ctx))
	}
	client, err := host.Client(config, s.settings.Options.Agent)
	if err != nil {
		return "", err
	}
	review, err := client.AuthenticationV1().SelfSubjectReviews().Create(ctx, &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if apierrors.IsUnauthorized(err) {
		return "", errUnknown
	}
	if err != nil {
		return "", fmt.Errorf("check the viewer's token with the API server: %w", err)
	}
	if review.Status.UserInfo.Username == "system:anonymous" {
		return "", errUnknown
	}
	return review.Status.UserInfo.Username, nil
}

// viewer determines the rights with which a request is answered, and reads the owner of its token from the API server. The status
// is that of a refusal.
func (s *sessions) viewer(r *http.Request) (config *rest.Config, user string, status int, err error) {
	token := bearer(r)
	config = s.settings.Config
	switch {
	case token == "":
		return nil, "", http.StatusUnauthorized, errors.New("the request has no key")
	case s.settings.Key != "" && !same(token, s.settings.Key):
		return nil, "", http.StatusUnauthorized, errors.New("the key does not belong to this page: open the address that `gpufabric console` " +
			"printed")
	case s.settings.Key == "":
		config = rest.AnonymousClientConfig(config)
		config.BearerToken = token
	}
	ctx, cancel := context.WithTimeout(r.Context(), asking)
	defer cancel()
	if s.settings.Key == "" {
		if status, err := s.tokens.may(token, r.RemoteAddr); err != nil {
			return nil, "", status, err
		}
	}
	// Every request checks the token again: an existing session does not show whether the token was revoked.
	user, err = s.who(ctx, config)
	if err == nil || errors.Is(err, errUnknown) {
		s.tokens.learn(token, err == nil)
	}
	if errors.Is(err, errUnknown) {
		return nil, "", http.StatusUnauthorized, err
	}
	if err != nil && s.settings.Key == "" {
		klog.FromContext(r.Context()).Error(err, "Could not check a viewer's token")
		return nil, "", http.StatusBadGateway, errors.New(snapshot.WithoutAddress(err))
	}
	return config, user, http.StatusOK, nil
}

// deny refuses a request, and reports the missing permission.
func (s *sessions) deny(w http.ResponseWriter, status int, err error) {
	wants := "key"
	if s.settings.Key == "" {
		wants = "token"
	}
	if status == http.StatusUnauthorized {
		w.Header().Set("WWW-Authenticate", `Bearer realm="gpufabric"`)
	}
	answer(w, status, refusal{Error: err.Error(), Wants: wants})
}

// enter finds or starts the session of a request; call leave afterwards.
func (s *sessions) enter(r *http.Request) (*session, int, error) {
	config, user, status, err := s.viewer(r)
	if err != nil {
		return nil, status, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	key := sha256.Sum256([]byte(bearer(r)))
	current := s.all[key]
	if current == nil || current.ctx.Err() != nil {
		if len(s.all) >= s.settings.Viewers && !s.makePlace(party(user)) {
			return nil, http.StatusServiceUnavailable, fmt.Errorf("the page has %d viewers, and more would take more memory (--viewers); the "+
				"service accounts of a namespace count as one viewer", len(s.all))
		}
		if current, err = s.begin(key, config, user); err != nil {
			return nil, http.StatusInternalServerError, err
		}
	}
	if current.streams >= streamsPerViewer {
		return nil, http.StatusTooManyRequests, fmt.Errorf("%d pages are open already with this token; close one", current.streams)
	}
	current.streams++
	if current.leaving != nil {
		current.leaving.Stop()
		current.leaving = nil
	}
	return current, http.StatusOK, nil
}

// begin starts reading the cluster for a viewer.
func (s *sessions) begin(key [sha256.Size]byte, config *rest.Config, user string) (*session, error) {
	source, err := reader.New(config, s.settings.Options)
	if err != nil {
		return nil, err
	}
	ctx, end := context.WithCancelCause(s.ctx)
	current := &session{about: about{User: user, Namespace: s.settings.Options.Namespace}, news: make(chan struct{}, 1), end: end, ctx: ctx,
		waiting: map[chan struct{}]uint64{}}
	s.all[key] = current
	s.running.Go(func() {
		current.run(ctx, source)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.all[key] == current {
			delete(s.all, key)
		}
	})
	klog.FromContext(s.ctx).Info("A viewer opened the page", "user", user, "viewers", len(s.all))
	return current, nil
}

// leave ends a session some time after its last stream.
func (s *sessions) leave(current *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if current.streams--; current.streams == 0 {
		current.leaving = time.AfterFunc(grace, func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			if current.streams > 0 {
				return
			}
			for key, other := range s.all {
				if other == current {
					delete(s.all, key)
				}
			}
			current.end(errors.New("the last viewer left"))
		})
	}
}

// session is one viewer's picture.
type session struct {
	about about
	news  chan struct{} // holds one token: something changed
	end   context.CancelCauseFunc
	ctx   context.Context //nolint:containedctx // streams wait for its end
	// streams and leaving belong to sessions' lock.
	streams int
	leaving *time.Timer

	mu      sync.Mutex
	parts   parts
	waiting map[chan struct{}]uint64 // streams, and the version each has sent
}

var errRefused = errors.New("the API server no longer accepts the token: sign in again")

// run draws a picture whenever something changed, until ctx ends.
func (s *session) run(ctx context.Context, source *reader.Reader) {
	var following *reader.Following
	var reading sync.WaitGroup
	defer reading.Wait()
	defer s.end(nil)
	started := make(chan *reader.Following, 1)
	reading.Go(func() {
		if err := source.Follow(ctx, s.changed, func(f *reader.Following) { started <- f }); err != nil && ctx.Err() == nil {
			s.end(err)
		}
	})
	select {
	case following = <-started:
	case <-ctx.Done():
		return
	}
	for {
		select {
		case <-s.news:
		case <-ctx.Done():
			return
		}
		if following.Refused() {
			s.end(errRefused)
			return
		}
		begin := time.Now()
		facts, settled := following.Facts()
		if settled || s.empty() {
			s.show(ctx, fabric.Draw(facts), settled)
		}
		rest := time.NewTimer(max(pace, share*time.Since(begin)))
		select {
		case <-rest.C:
		case <-ctx.Done():
			rest.Stop()
			return
		}
	}
}

func (s *session) changed() {
	select {
	case s.news <- struct{}{}:
	default:
	}
}

func (s *session) empty() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.about.Settled
}

// show sends a picture to every stream.
func (s *session) show(ctx context.Context, picture *fabric.Picture, settled bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.about.Settled = s.about.Settled || settled
	changed, err := s.parts.update(picture, s.about)
	if err != nil {
		klog.FromContext(ctx).Error(err, "Could not update a part of the picture")
	}
	if !changed {
		return
	}
	oldest := s.parts.version
	for wake, seen := range s.waiting {
		oldest = min(oldest, seen)
		select {
		case wake <- struct{}{}:
		default:
		}
	}
	s.parts.forget(oldest)
}

// stream serves one page with server-sent events, which the page reads by fetch: an EventSource cannot send Authorization.
func (s *sessions) stream(w http.ResponseWriter, r *http.Request) {
	current, status, err := s.enter(r) //nolint:contextcheck // a session outlives the request that begins it
	if err != nil {
		s.deny(w, status, err)
		return
	}
	defer s.leave(current)
	wake := make(chan struct{}, 1)
	current.mu.Lock()
	current.waiting[wake] = 0
	current.mu.Unlock()
	defer func() {
		current.mu.Lock()
		defer current.mu.Unlock()
		delete(current.waiting, wake)
	}()
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("X-Accel-Buffering", "no") // for a proxy that would buffer the events
	out := &events{w: w, control: http.NewResponseController(w)}
	for err = out.comment("the fabric"); err == nil; {
		current.mu.Lock()
		messages := current.parts.since(current.waiting[wake])
		version := current.parts.version
		current.mu.Unlock()
		for i := 0; i < len(messages) && err == nil; i++ {
			err = out.send("change", messages[i])
		}
		if err != nil {
			return
		}
		current.mu.Lock()
		current.waiting[wake] = version
		current.mu.Unlock()
		err = out.await(r.Context(), current, wake)
	}
}

// events writes server-sent events.
type events struct {
	w       http.ResponseWriter
	control *http.ResponseController
}

var errEnded = errors.New("the stream has ended")

// await returns when there is news, and keeps the connection open until then.
func (e *events) await(ctx context.Context, current *session, wake <-chan struct{}) error {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		select {
		case <-wake:
			return nil
		case <-tick.C:
			if err := e.comment("still here"); err != nil {
				return err
			}
		case <-ctx.Done():
			return errEnded
		case <-current.ctx.Done():
			cause := context.Cause(current.ctx) //nolint:contextcheck // the session's end, not the request's
			if errors.Is(cause, errRefused) {
				_ = e.send("end", refusal{Error: cause.Error(), Wants: "token"}) // the stream ends either way
			}
			return errEnded
		}
	}
}

func (e *events) comment(text string) error { return e.write(": " + text + "\n\n") }

func (e *events) send(event string, value any) error {
	content, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("write an event: %w", err)
	}
	return e.write("event: " + event + "\ndata: " + string(content) + "\n\n") // JSON is one line
}

func (e *events) write(text string) error {
	if err := e.control.SetWriteDeadline(time.Now().Add(writeTime)); err != nil {
		return fmt.Errorf("set the time limit of a page: %w", err)
	}
	if _, err := e.w.Write([]byte(text)); err != nil {
		return fmt.Errorf("write to a page: %w", err)
	}
	return e.control.Flush()
}
