package imex

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Certificates are the files with which the daemons of a domain authenticate each other.
type Certificates struct {
	// Dir has the files ca.crt, tls.crt and tls.key.
	Dir string
	// Name is the name in the certificate of every daemon of the domain.
	Name string
}

// Authority is the path of the authority's certificate.
func (c Certificates) Authority() string { return filepath.Join(c.Dir, "ca.crt") }

// Cert is the path of the daemons' certificate.
func (c Certificates) Cert() string { return filepath.Join(c.Dir, "tls.crt") }

// Key is the path of the daemons' key.
func (c Certificates) Key() string { return filepath.Join(c.Dir, "tls.key") }

// Check reports why peers would not accept the certificate. nvidia-imex itself would start, and stay alone.
func (c Certificates) Check(now time.Time) error {
	pair, err := tls.LoadX509KeyPair(c.Cert(), c.Key())
	if err != nil {
		return c.wrong(err)
	}
	roots, err := authorities(c.Authority())
	if err != nil {
		return c.wrong(err)
	}
	for _, usage := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{DNSName: c.Name, Roots: roots, CurrentTime: now,
			KeyUsages: []x509.ExtKeyUsage{usage}}); err != nil {
			return c.wrong(err)
		}
	}
	return nil
}

func (c Certificates) wrong(err error) error {
	return fmt.Errorf("the certificate of the domain's IMEX daemons in %s cannot be used: %w", c.Dir, err)
}

// authorities reads a file of certificates, all of which must be authorities'.
func authorities(path string) (*x509.CertPool, error) {
	rest, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool, empty := x509.NewCertPool(), true
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", path, err)
		}
		if !cert.IsCA {
			return nil, fmt.Errorf("%s: the certificate of %q does not belong to an authority (CA:FALSE)", path, cert.Subject.CommonName)
		}
		pool.AddCert(cert)
		empty = false
	}
	if empty {
		return nil, errors.New(path + " does not have a certificate")
	}
	return pool, nil
}
