// Package pki is the certificate authority of a simulated cluster: one authority signs the API server's certificate and
// every client's, in process, so that nothing outside the module is needed to make a cluster.
package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// lifetime is longer than that of any simulated cluster, and so short that a forgotten key soon has no value.
const lifetime = 7 * 24 * time.Hour

// Names of an authority's files in its directory, all PEM.
const (
	caCertFile     = "ca.crt"
	caKeyFile      = "ca.key"
	serviceKeyFile = "service-account.key"
)

// Authority signs certificates and holds the key that signs service account tokens.
type Authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// Pair is a certificate and its private key, both PEM.
type Pair struct {
	Cert, Key []byte
}

// Create makes a new authority and writes it to dir (created if needed, mode 0700).
func Create(dir string) (*Authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make the certificate directory: %w", err)
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the authority's key: %w", err)
	}
	template := certificate("simcluster-ca", nil)
	template.IsCA, template.BasicConstraintsValid = true, true
	template.KeyUsage |= x509.KeyUsageCertSign
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign the authority's certificate: %w", err)
	}
	serviceKey, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("make the service account key: %w", err)
	}
	for name, k := range map[string]*ecdsa.PrivateKey{caKeyFile: key, serviceKeyFile: serviceKey} {
		encoded, err := encodeKey(k)
		if err != nil {
			return nil, err
		}
		if err := os.WriteFile(filepath.Join(dir, name), encoded, 0o600); err != nil {
			return nil, fmt.Errorf("write the authority: %w", err)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, caCertFile), encode("CERTIFICATE", der), 0o600); err != nil {
		return nil, fmt.Errorf("write the authority: %w", err)
	}
	return Load(dir)
}

// Load reads an authority that Create wrote, so that other processes of the same cluster can issue certificates.
func Load(dir string) (*Authority, error) {
	certBlock, err := readBlock(filepath.Join(dir, caCertFile))
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(certBlock)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", filepath.Join(dir, caCertFile), err)
	}
	keyBlock, err := readBlock(filepath.Join(dir, caKeyFile))
	if err != nil {
		return nil, err
	}
	key, err := x509.ParseECPrivateKey(keyBlock)
	if err != nil {
		return nil, fmt.Errorf("parse %s: %w", filepath.Join(dir, caKeyFile), err)
	}
	return &Authority{dir: dir, cert: cert, key: key}, nil
}

// CertFile is the path of the authority's certificate.
func (a *Authority) CertFile() string { return filepath.Join(a.dir, caCertFile) }

// ServiceAccountKeyFile is the path of the key that signs service account tokens.
func (a *Authority) ServiceAccountKeyFile() string { return filepath.Join(a.dir, serviceKeyFile) }

// CertPEM is the authority's certificate.
func (a *Authority) CertPEM() []byte { return encode("CERTIFICATE", a.cert.Raw) }

// Client issues a client certificate for a user and its groups.
func (a *Authority) Client(user string, groups ...string) (Pair, error) {
	template := certificate(user, groups)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}
	return a.issue(template)
}

// Server issues a serving certificate for the given DNS names and addresses.
func (a *Authority) Server(name string, dns []string, addresses []net.IP) (Pair, error) {
	template := certificate(name, nil)
	template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
	template.DNSNames, template.IPAddresses = dns, addresses
	return a.issue(template)
}

func (a *Authority) issue(template *x509.Certificate) (Pair, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Pair{}, fmt.Errorf("make a key for %s: %w", template.Subject.CommonName, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, key.Public(), a.key)
	if err != nil {
		return Pair{}, fmt.Errorf("sign a certificate for %s: %w", template.Subject.CommonName, err)
	}
	encoded, err := encodeKey(key)
	if err != nil {
		return Pair{}, err
	}
	return Pair{Cert: encode("CERTIFICATE", der), Key: encoded}, nil
}

// Write stores the pair as NAME.crt and NAME.key in dir and returns both paths.
func (p Pair) Write(dir, name string) (cert, key string, err error) {
	cert, key = filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	if err := os.WriteFile(cert, p.Cert, 0o600); err != nil {
		return "", "", fmt.Errorf("write the certificate of %s: %w", name, err)
	}
	if err := os.WriteFile(key, p.Key, 0o600); err != nil {
		return "", "", fmt.Errorf("write the key of %s: %w", name, err)
	}
	return cert, key, nil
}

func certificate(name string, groups []string) *x509.Certificate {
	// 63 random bits, since serial numbers must only differ within one authority.
	serial, err := rand.Int(rand.Reader, big.NewInt(1<<62))
	if err != nil {
		panic(err) // crypto/rand never fails on Linux
	}
	now := time.Now()
	return &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: name, Organization: groups},
		// An hour back, since tests may step the clocks of some of the cluster's processes.
		NotBefore: now.Add(-time.Hour),
		NotAfter:  now.Add(lifetime),
		KeyUsage:  x509.KeyUsageDigitalSignature | x509.KeyUsageKeyEncipherment,
	}
}

func encode(kind string, der []byte) []byte {
	return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode a key: %w", err)
	}
	return encode("EC PRIVATE KEY", der), nil
}

func readBlock(path string) ([]byte, error) {
	content, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read the cluster's authority: %w", err)
	}
	block, _ := pem.Decode(content)
	if block == nil {
		return nil, fmt.Errorf("read the cluster's authority: %s has no PEM block", path)
	}
	return block.Bytes, nil
}
