// Package authority issues the certificates by which the IMEX daemons of a compute domain authenticate each other.
//
// Each domain has an authority of its own, and one certificate that all its daemons share: a daemon can authenticate only as a member of
// its domain. nvidia-imex checks that the certificate of a client is of the authority. Of a server it also checks one name, which is the
// same for all (IMEX_SECURITY_TARGET_OVERRIDE). So certificates for single nodes would distinguish nothing, and an authority that two
// domains share would let the daemons of one connect to those of the other.
//
// The authorities' keys are stored nowhere. They are derived from one secret of the controller, so that the controller reads one Secret by
// its name and no other, and can renew a certificate under the same authority as long as the domain lives.
package authority

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/hkdf"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"fmt"
	"math/big"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"gpufabric.io/drivers/computedomain"
)

const (
	// SeedSize is the size of the controller's secret in bytes.
	SeedSize = 32

	// Life is how long a certificate is valid. nvidia-imex reads it when it starts, and a daemon runs for as long as its jobs, or its rack.
	Life = 10 * 365 * 24 * time.Hour
	// Renewal is the age at which a certificate is replaced, for daemons that start after that.
	Renewal = 365 * 24 * time.Hour

	// authorityLife is how long an authority is valid from when its domain was made.
	authorityLife = 40 * 365 * 24 * time.Hour
	// skew is how far clocks may differ.
	skew = time.Hour
)

// Issued is a certificate with its key and its authority, as PEM.
type Issued struct{ Authority, Cert, Key []byte }

// Issue makes a new certificate of a domain that was made at a time.
func Issue(seed []byte, domain types.UID, made, now time.Time) (Issued, error) {
	issued, err := issue(seed, domain, made, now)
	if err != nil {
		return Issued{}, fmt.Errorf("make a certificate for the IMEX daemons of ComputeDomain %s: %w", domain, err)
	}
	return issued, nil
}

// begins is from when a certificate is valid: from the domain's creation, by the API server's clock, where the controller's is ahead of
// the nodes'.
func begins(made, now time.Time) time.Time {
	if made.Before(now) {
		return made.Add(-skew)
	}
	return now.Add(-skew)
}

func issue(seed []byte, domain types.UID, made, now time.Time) (Issued, error) {
	root, err := key(seed, domain)
	if err != nil {
		return Issued{}, err
	}
	authority := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority of " + computedomain.CertificateName(domain)},
		NotBefore: made.Add(-skew), NotAfter: made.Add(authorityLife),
		KeyUsage: x509.KeyUsageCertSign, IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
	}
	authorityDER, err := x509.CreateCertificate(rand.Reader, authority, authority, root.Public(), root)
	if err != nil {
		return Issued{}, err
	}
	if authority, err = x509.ParseCertificate(authorityDER); err != nil {
		return Issued{}, err
	}
	leaf, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return Issued{}, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return Issued{}, err
	}
	name := computedomain.CertificateName(domain)
	der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{
		SerialNumber: serial, Subject: pkix.Name{CommonName: "an IMEX daemon of gpufabric"}, DNSNames: []string{name},
		NotBefore: begins(made, now), NotAfter: now.Add(Life),
		KeyUsage:              x509.KeyUsageDigitalSignature,
		ExtKeyUsage:           []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
		BasicConstraintsValid: true,
	}, authority, leaf.Public(), root)
	if err != nil {
		return Issued{}, err
	}
	private, err := x509.MarshalPKCS8PrivateKey(leaf)
	if err != nil {
		return Issued{}, err
	}
	encode := func(kind string, der []byte) []byte { return pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}) }
	return Issued{Authority: encode("CERTIFICATE", authorityDER), Cert: encode("CERTIFICATE", der), Key: encode("PRIVATE KEY", private)}, nil
}

// Fingerprint identifies a domain's authority: the SHA-256 of its public key (SubjectPublicKeyInfo), in hexadecimal.
func Fingerprint(seed []byte, domain types.UID) (string, error) {
	root, err := key(seed, domain)
	if err != nil {
		return "", fmt.Errorf("identify the authority of ComputeDomain %s: %w", domain, err)
	}
	public, err := x509.MarshalPKIXPublicKey(root.Public())
	if err != nil {
		return "", fmt.Errorf("identify the authority of ComputeDomain %s: %w", domain, err)
	}
	return fmt.Sprintf("%x", sha256.Sum256(public)), nil
}

// key derives the key of a domain's authority: always the same from the same seed. A number of 48 bytes is reduced to the curve's order, so
// that no key is noticeably likelier than another (FIPS 186-5, appendix A.2.1).
func key(seed []byte, domain types.UID) (*ecdsa.PrivateKey, error) {
	if len(seed) != SeedSize {
		return nil, fmt.Errorf("the seed has %d bytes, want %d", len(seed), SeedSize)
	}
	if domain == "" {
		return nil, fmt.Errorf("the domain has no UID")
	}
	wide, err := hkdf.Key(sha256.New, seed, nil, "gpufabric: authority of the IMEX daemons of "+string(domain), 48)
	if err != nil {
		return nil, err
	}
	curve := elliptic.P256()
	scalar := new(big.Int).SetBytes(wide)
	scalar.Mod(scalar, new(big.Int).Sub(curve.Params().N, big.NewInt(1))).Add(scalar, big.NewInt(1))
	return ecdsa.ParseRawPrivateKey(curve, scalar.FillBytes(make([]byte, 32)))
}
