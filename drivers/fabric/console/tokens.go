package console

import (
	"crypto/sha256"
	"errors"
	"net/http"
	"sync"
	"time"

	"gpufabric.io/drivers/node/httpserver"
)

const (
	// refusedFor is how long a token that the API server refused is refused without another question.
	refusedFor = time.Minute
	// mostTokens limits the tokens that are stored, separately for accepted and refused ones.
	mostTokens = 256
)

var errTooMany = errors.New("too many unknown tokens from this address: try again in some seconds")

// tokens limits the questions to the API server for tokens that it did not accept before. A token is stored as its checksum.
type tokens struct {
	mu sync.Mutex
	// accepted are tokens that the API server accepted once; each request checks them again. refused are the others, until the stored time.
	accepted, refused map[[sha256.Size]byte]time.Time
	reviews           httpserver.TokenReviews
}

// may returns the status and the error with which a request is refused without a question to the API server.
func (t *tokens) may(token, from string) (int, error) {
	key, now := sha256.Sum256([]byte(token)), time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	_, known := t.accepted[key]
	switch {
	case known:
	case now.Before(t.refused[key]):
		return http.StatusUnauthorized, errUnknown
	case !t.reviews.Allow(from, now):
		return http.StatusTooManyRequests, errTooMany
	}
	return http.StatusOK, nil
}

// learn stores the API server's answer.
func (t *tokens) learn(token string, accepted bool) {
	key := sha256.Sum256([]byte(token))
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.accepted, key)
	kept := &t.refused
	if accepted {
		kept = &t.accepted
	}
	if *kept == nil || len(*kept) >= mostTokens {
		*kept = map[[sha256.Size]byte]time.Time{}
	}
	(*kept)[key] = time.Now().Add(refusedFor)
}
