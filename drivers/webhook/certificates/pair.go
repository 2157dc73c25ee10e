// Package certificates keeps the webhook's certificate. It makes a missing one, replaces it long before it expires, and updates the CA
// bundle of the webhook's configuration. Each certificate is its own authority, so the webhook's own key is the only one.
package certificates

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"
)

// pair is a certificate and its key.
type pair struct {
	leaf      *x509.Certificate
	cert, key []byte // PEM
}

// skew is how far the clocks of the API server's and the controller's machines may differ.
const skew = 5 * time.Minute

// newPair makes a certificate for hosts (names and IP addresses) that is valid for life from now.
func newPair(hosts []string, now time.Time, life time.Duration) (*pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make a key for the webhook: %w", err)
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, fmt.Errorf("make a certificate for the webhook: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "gpufabric-webhook"},
		NotBefore: now.Add(-skew), NotAfter: now.Add(life),
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		BasicConstraintsValid: true,
	}
	for _, host := range hosts {
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("make a certificate for the webhook: %w", err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("write the webhook's key: %w", err)
	}
	return parsePair(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private}))
}

// parsePair reads a pair whose halves must belong together.
func parsePair(cert, key []byte) (*pair, error) {
	both, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, err
	}
	leaf, err := x509.ParseCertificate(both.Certificate[0])
	if err != nil {
		return nil, err
	}
	return &pair{leaf: leaf, cert: cert, key: key}, nil
}

// serves reports why a pair cannot serve hosts now; nil: it can.
func (p *pair) serves(hosts []string, now time.Time) error {
	if now.Before(p.leaf.NotBefore) { // it was made before the machine's clock was set
		return fmt.Errorf("it begins at %s", p.leaf.NotBefore.UTC().Format(time.RFC3339))
	}
	if now.After(p.leaf.NotAfter) {
		return fmt.Errorf("it ended at %s", p.leaf.NotAfter.UTC().Format(time.RFC3339))
	}
	var errs []error
	for _, host := range hosts {
		errs = append(errs, p.leaf.VerifyHostname(host))
	}
	return errors.Join(errs...)
}

// renewal is when a pair must be replaced: with a third of its life left, however long the controller was away.
func (p *pair) renewal() time.Time {
	return p.leaf.NotAfter.Add(-p.leaf.NotAfter.Sub(p.leaf.NotBefore.Add(skew)) / 3)
}

// parseBundle reads the certificates of a bundle, and ignores everything else.
func parseBundle(bundle []byte) []*x509.Certificate {
	var out []*x509.Certificate
	for {
		var block *pem.Block
		if block, bundle = pem.Decode(bundle); block == nil {
			return out
		}
		if cert, err := x509.ParseCertificate(block.Bytes); err == nil {
			out = append(out, cert)
		}
	}
}

// formatBundle writes certificates as PEM, each once.
func formatBundle(certs []*x509.Certificate) []byte {
	var out bytes.Buffer
	seen := map[string]bool{}
	for _, cert := range certs {
		if !seen[string(cert.Raw)] {
			seen[string(cert.Raw)] = true
			_ = pem.Encode(&out, &pem.Block{Type: "CERTIFICATE", Bytes: cert.Raw}) // to memory
		}
	}
	return out.Bytes()
}
