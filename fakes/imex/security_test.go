package imex_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"log/slog"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"gpufabric.io/fakes/imex"
)

// authority issues certificates.
type authority struct {
	t    *testing.T
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

func newAuthority(t *testing.T, isCA bool) *authority {
	t.Helper()
	a := &authority{t: t}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"},
		NotAfter: time.Now().Add(time.Hour),
		KeyUsage: x509.KeyUsageCertSign, IsCA: isCA, BasicConstraintsValid: true}
	a.cert, a.key = a.sign(template, template)
	return a
}

func (a *authority) sign(template, parent *x509.Certificate) (*x509.Certificate, *ecdsa.PrivateKey) {
	a.t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		a.t.Fatal(err)
	}
	by := a.key
	if by == nil {
		by = key
	}
	der, err := x509.CreateCertificate(rand.Reader, template, parent, key.Public(), by)
	if err != nil {
		a.t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		a.t.Fatal(err)
	}
	return cert, key
}

// issue writes a certificate for name, and the authority's, into a directory.
func (a *authority) issue(dir, name string) {
	a.t.Helper()
	cert, key := a.sign(&x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour),
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth}}, a.cert)
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		a.t.Fatal(err)
	}
	for file, block := range map[string]*pem.Block{"ca.crt": {Type: "CERTIFICATE", Bytes: a.cert.Raw},
		"tls.crt": {Type: "CERTIFICATE", Bytes: cert.Raw}, "tls.key": {Type: "PRIVATE KEY", Bytes: private}} {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(block), 0o600); err != nil {
			a.t.Fatal(err)
		}
	}
}

// by is a daemon with the certificate in a directory, which expects a name of its peers.
func by(t *testing.T, dir, target string) func(*imex.Config, *imex.Options) {
	t.Helper()
	lines := "IMEX_ENABLE_AUTH_ENCRYPTION=1\nIMEX_AUTH_ENCRYPTION_MODE=SSL_TLS\nIMEX_AUTH_SOURCE=FILE\nIMEX_SECURITY_TARGET_OVERRIDE=" + target
	for _, side := range []string{"SERVER", "CLIENT"} {
		for key, file := range map[string]string{"KEY": "tls.key", "CERT": "tls.crt", "CERT_AUTH": "ca.crt"} {
			lines += "\nIMEX_" + side + "_" + key + "=" + filepath.Join(dir, file)
		}
	}
	config, err := imex.ParseConfig([]byte(lines))
	if err != nil {
		t.Fatal(err)
	}
	return func(c *imex.Config, _ *imex.Options) { c.Security = config.Security }
}

// logged collects a daemon's log.
type logged struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logged) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}
func (l *logged) says(words string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), words)
}
func (l *logged) into(_ *imex.Config, o *imex.Options) { o.Log = slog.New(slog.NewTextHandler(l, nil)) }

func TestSecurityConnectsDaemonsOfOneAuthorityAndName(t *testing.T) {
	ours, theirs := newAuthority(t, true), newAuthority(t, true)
	for name, c := range map[string]struct {
		peer     func(dir string) func(*imex.Config, *imex.Options)
		accepted bool
		why      string // in the log of the daemon that refuses
	}{
		"of the same": {func(dir string) func(*imex.Config, *imex.Options) {
			ours.issue(dir, "d.imex")
			return by(t, dir, "d.imex")
		}, true, ""},
		"without a certificate": {func(string) func(*imex.Config, *imex.Options) {
			return func(*imex.Config, *imex.Options) {}
		}, false, "not accepted"},
		"of another domain's authority": {func(dir string) func(*imex.Config, *imex.Options) {
			theirs.issue(dir, "d.imex")
			return by(t, dir, "d.imex")
		}, false, "unknown authority"},
		"of another domain's name": {func(dir string) func(*imex.Config, *imex.Options) {
			ours.issue(dir, "other.imex")
			return by(t, dir, "other.imex")
		}, false, "other.imex"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newDomain(t, "*.1", "*.2")
			dir, log := t.TempDir(), &logged{}
			ours.issue(dir, "d.imex")
			a := d.start(1, by(t, dir, "d.imex"), log.into)
			b := d.start(2, c.peer(t.TempDir()))
			if c.accepted {
				eventually(t, "UP", func() bool { return a.is(imex.DomainUp)() && b.is(imex.DomainUp)() })
				return
			}
			eventually(t, "the refusal is in the log", func() bool { return log.says(c.why) })
			// A daemon that were accepted would be connected by now: another refusal has followed.
			for from, n := range map[string]*node{"1": a, "0": b} {
				if got := n.Status().Nodes[map[string]string{"1": "0", "0": "1"}[from]].Connections[from].Status; got != imex.NeverConnected {
					t.Errorf("%s", got)
				}
			}
		})
	}
}

func TestCertificatesAreReadWhenADaemonStartsAndNeverAgain(t *testing.T) {
	first, next := newAuthority(t, true), newAuthority(t, true)
	d := newDomain(t, "*.1", "*.2")
	dir := t.TempDir()
	first.issue(dir, "d")
	secure := by(t, dir, "d")
	log := &logged{}
	a := d.start(1, secure, log.into)
	b := d.start(2, secure)
	eventually(t, "UP", a.is(imex.DomainUp))
	first.issue(dir, "d") // renewed by the same authority
	_ = b.stop()
	b = d.start(2, secure)
	eventually(t, "a renewed certificate is accepted", func() bool { return a.is(imex.DomainUp)() && b.is(imex.DomainUp)() })
	next.issue(dir, "d")
	_ = b.stop()
	d.start(2, secure)
	eventually(t, "one of another authority is not", func() bool { return log.says("unknown authority") })
}

func TestSecurityRejectsAWrongAuthority(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(t *testing.T, dir string)
		want  string
	}{
		"no authority": {func(t *testing.T, dir string) { newAuthority(t, false).issue(dir, "d") },
			`ca.crt: the certificate of "authority" does not belong to an authority`},
		"no certificate": {func(t *testing.T, dir string) {
			newAuthority(t, true).issue(dir, "d")
			if err := os.WriteFile(filepath.Join(dir, "ca.crt"), []byte("x"), 0o600); err != nil {
				t.Fatal(err)
			}
		}, "the file has no certificate"},
		"no files": {func(*testing.T, string) {}, "IMEX_SERVER_CERT="},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			c.spoil(t, dir)
			if err := os.WriteFile(filepath.Join(dir, "nodes"), []byte("127.0.0.1\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			config := imex.Config{NodesFile: filepath.Join(dir, "nodes")}
			by(t, dir, "d")(&config, nil)
			if _, err := imex.New(config, imex.Options{}); err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("%v, want %q", err, c.want)
			}
		})
	}
	for lines, want := range map[string]string{
		"IMEX_ENABLE_AUTH_ENCRYPTION=1":                                                       "IMEX_AUTH_SOURCE=",
		"IMEX_ENABLE_AUTH_ENCRYPTION=1\nIMEX_AUTH_ENCRYPTION_MODE=GSS_AUTH_ONLY":              "SSL_TLS only",
		"IMEX_ENABLE_AUTH_ENCRYPTION=yes, please\nIMEX_AUTH_ENCRYPTION_MODE=GSS_AUTH_ENCRYPT": "line 1",
	} {
		if _, err := imex.ParseConfig([]byte(lines)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", lines, err, want)
		}
	}
}
