package release

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/ProtonMail/go-crypto/openpgp"
	"github.com/ProtonMail/go-crypto/openpgp/armor"
	"github.com/ProtonMail/go-crypto/openpgp/clearsign"
	"github.com/ProtonMail/go-crypto/openpgp/packet"
)

// Names of the keys in their directory.
const (
	signingKey = "signing.key" // ECDSA on P-256, PKCS #8 in PEM: images, charts, checksums, attestations
	openpgpKey = "openpgp.asc" // armored: the provider's checksums and the charts' provenance, which Terraform and Helm want so
)

// Keys sign a release. Their signatures do not change from run to run: ECDSA's by RFC 6979, OpenPGP's by the time of the commit.
type Keys struct {
	ecdsa *ecdsa.PrivateKey
	pgp   *openpgp.Entity
}

// ReadKeys reads the private keys in dir.
func ReadKeys(dir string) (*Keys, error) {
	read := func(name string) ([]byte, error) {
		content, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("no key %s in KEYS=%s: name a directory with %s and %s (`make release-keys KEYS=DIRECTORY` makes new ones), "+
				"or set KEYS=none for files that nobody can verify", name, dir, signingKey, openpgpKey)
		}
		return content, err
	}
	text, err := read(signingKey)
	if err != nil {
		return nil, err
	}
	keys := &Keys{}
	if keys.ecdsa, err = parseECDSA(text); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, signingKey), err)
	}
	if text, err = read(openpgpKey); err != nil {
		return nil, err
	}
	entities, err := openpgp.ReadArmoredKeyRing(bytes.NewReader(text))
	if err != nil {
		return nil, fmt.Errorf("%s is not an armored OpenPGP key (gpg --armor --export-secret-keys): %w", filepath.Join(dir, openpgpKey), err)
	}
	if len(entities) != 1 || entities[0].PrivateKey == nil || entities[0].PrivateKey.Encrypted {
		return nil, fmt.Errorf("%s: want one private key without a passphrase", filepath.Join(dir, openpgpKey))
	}
	keys.pgp = entities[0]
	return keys, nil
}

func parseECDSA(text []byte) (*ecdsa.PrivateKey, error) {
	block, _ := pem.Decode(text)
	if block == nil || block.Type != "PRIVATE KEY" {
		return nil, errors.New("want a PEM block PRIVATE KEY, PKCS #8 without a password " +
			"(openssl genpkey -algorithm EC -pkeyopt ec_paramgen_curve:P-256)")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, err
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return nil, errors.New("want an ECDSA key on P-256")
	}
	return key, nil
}

// WriteKeys makes new keys in dir, the OpenPGP key of so many bits, which their owner alone can read. It replaces none.
func WriteKeys(dir, name, address string, bits int) error {
	if dir == "" {
		return errors.New("no KEYS: name the directory that gets the new keys")
	}
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return err
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	// RSA and version 4 keys: what Terraform's registry and every Helm read.
	config := &packet.Config{Algorithm: packet.PubKeyAlgoRSA, RSABits: bits}
	entity, err := openpgp.NewEntity(name, "release", address, config)
	if err != nil {
		return err
	}
	var armored bytes.Buffer
	w, err := armor.Encode(&armored, openpgp.PrivateKeyType, nil)
	if err != nil {
		return err
	}
	if err := errors.Join(entity.SerializePrivate(w, config), w.Close()); err != nil {
		return err
	}
	return errors.Join(
		writeNew(filepath.Join(dir, signingKey), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der})),
		writeNew(filepath.Join(dir, openpgpKey), armored.Bytes()))
}

func writeNew(path string, content []byte) error {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	_, err = file.Write(content)
	return errors.Join(err, file.Close())
}

// Sign returns an ASN.1 signature over the SHA-256 of content, as cosign and openssl verify it.
func (k *Keys) Sign(content []byte) ([]byte, error) {
	sum := sha256.Sum256(content)
	return k.ecdsa.Sign(nil, sum[:], crypto.SHA256) // without a source of randomness it is the signature of RFC 6979
}

// Public returns the public half of the signing key in PEM, as cosign and openssl read it.
func (k *Keys) Public() ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(k.ecdsa.Public())
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// config makes signatures of OpenPGP repeatable: at a given time, or the key's where that is later, and without a random notation.
func (k *Keys) config(at time.Time) *packet.Config {
	if made := k.pgp.PrimaryKey.CreationTime; at.Before(made) {
		at = made // a signature from before its key is invalid
	}
	random := false
	return &packet.Config{Time: func() time.Time { return at }, NonDeterministicSignaturesViaNotation: &random, DefaultHash: crypto.SHA512}
}

// Detached returns a binary OpenPGP signature, as Terraform verifies checksums.
func (k *Keys) Detached(content []byte, at time.Time) ([]byte, error) {
	var signature bytes.Buffer
	err := openpgp.DetachSign(&signature, k.pgp, bytes.NewReader(content), k.config(at))
	return signature.Bytes(), err
}

// Clear returns a text with its OpenPGP signature, as Helm verifies charts.
func (k *Keys) Clear(text []byte, at time.Time) ([]byte, error) {
	var signed bytes.Buffer
	w, err := clearsign.Encode(&signed, k.pgp.PrivateKey, k.config(at))
	if err != nil {
		return nil, err
	}
	_, err = w.Write(text)
	err = errors.Join(err, w.Close())
	signed.WriteByte('\n')
	return signed.Bytes(), err
}

// PublicPGP returns the public half of the OpenPGP key, armored, and the same as a keyring of gpg's old format, which Helm reads.
func (k *Keys) PublicPGP() (armored, keyring []byte, err error) {
	var ring, text bytes.Buffer
	if err := k.pgp.Serialize(&ring); err != nil {
		return nil, nil, err
	}
	w, err := armor.Encode(&text, openpgp.PublicKeyType, nil)
	if err != nil {
		return nil, nil, err
	}
	_, err = w.Write(ring.Bytes())
	err = errors.Join(err, w.Close())
	text.WriteByte('\n')
	return text.Bytes(), ring.Bytes(), err
}
