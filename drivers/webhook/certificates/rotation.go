package certificates

import (
	"crypto/x509"
	"slices"
	"time"
)

// Keys of the Secret. The webhook reads the first two.
const (
	keyServed, keyServedKey = "tls.crt", "tls.key"
	keyNext, keyNextKey     = "next.crt", "next.key"
	keyBundle               = "ca.crt"
)

// Annotations of the Secret: when the API server got the next certificate, and since when the present one is served.
const (
	annotationPublished = "gpufabric.io/next-told"
	annotationPromoted  = "gpufabric.io/served-since"
)

// state is the content of the Secret. A certificate comes in three steps, so that the API server always trusts the one that it
// meets: it is made and sent to the API server (next), it is served (served), and the previous one is dropped (earlier).
type state struct {
	served, next *pair
	earlier      []*x509.Certificate
	// published is when the API server got next; promoted is when served began to be served.
	published, promoted time.Time
}

// readState reads the data of a Secret. An unreadable entry counts as missing, and is made again.
func readState(data map[string][]byte, annotations map[string]string) *state {
	s := &state{}
	s.served, _ = parsePair(data[keyServed], data[keyServedKey])
	s.next, _ = parsePair(data[keyNext], data[keyNextKey])
	s.published, _ = time.Parse(time.RFC3339Nano, annotations[annotationPublished])
	s.promoted, _ = time.Parse(time.RFC3339Nano, annotations[annotationPromoted])
	for _, cert := range parseBundle(data[keyBundle]) {
		if !s.is(s.served, cert) && !s.is(s.next, cert) {
			s.earlier = append(s.earlier, cert)
		}
	}
	return s
}

func (s *state) is(p *pair, cert *x509.Certificate) bool { return p != nil && p.leaf.Equal(cert) }

// write returns the Secret's data and annotations.
func (s *state) write() (data map[string][]byte, annotations map[string]string) {
	data = map[string][]byte{keyServed: s.served.cert, keyServedKey: s.served.key, keyBundle: s.bundle()}
	annotations = map[string]string{annotationPromoted: s.promoted.UTC().Format(time.RFC3339Nano)}
	if s.next != nil {
		data[keyNext], data[keyNextKey] = s.next.cert, s.next.key
		if !s.published.IsZero() {
			annotations[annotationPublished] = s.published.UTC().Format(time.RFC3339Nano)
		}
	}
	return data, annotations
}

// bundle has the authorities that the API server must trust for the webhook.
func (s *state) bundle() []byte {
	certs := []*x509.Certificate{s.served.leaf}
	if s.next != nil {
		certs = append(certs, s.next.leaf)
	}
	return formatBundle(append(certs, s.earlier...))
}

// advance takes the next step that is due. known is the bundle that the API server trusts for the webhook now. It is kept where everything
// else is lost: pods serve it until the kubelet brings them the new files.
func (s *state) advance(o Options, known []*x509.Certificate, now time.Time) (changed bool, err error) {
	if s.served == nil || s.served.serves(o.Hosts, now) != nil {
		if s.served != nil {
			s.earlier = append(s.earlier, s.served.leaf)
		}
		if s.served, err = newPair(o.Hosts, now, o.Life); err != nil {
			return false, err
		}
		s.earlier, s.next, s.published, s.promoted, changed = append(s.earlier, known...), nil, time.Time{}, now, true
	}
	if s.next != nil && s.next.serves(o.Hosts, now) != nil {
		s.next, s.published, changed = nil, time.Time{}, true
	}
	if s.published.After(now) { // the clock was set back
		s.published, changed = now, true
	}
	switch {
	case s.next == nil && !now.Before(s.served.renewal()):
		if s.next, err = newPair(o.Hosts, now, o.Life); err != nil {
			return false, err
		}
		s.published, changed = time.Time{}, true
	case s.next != nil && !s.published.IsZero() && !now.Before(s.published.Add(o.Overlap)):
		s.earlier = append(s.earlier, s.served.leaf)
		s.served, s.next, s.published, s.promoted, changed = s.next, nil, time.Time{}, now, true
	}
	before := len(s.earlier)
	s.earlier = slices.DeleteFunc(s.earlier, func(cert *x509.Certificate) bool {
		return now.After(cert.NotAfter) || !now.Before(s.promoted.Add(o.Keep))
	})
	return changed || len(s.earlier) != before, nil
}

// due is when advance has something to do again.
func (s *state) due(o Options) time.Time {
	at := s.served.renewal()
	if s.next != nil {
		at = s.published.Add(o.Overlap)
	}
	if forget := s.promoted.Add(o.Keep); len(s.earlier) > 0 && forget.Before(at) {
		at = forget
	}
	return at
}
