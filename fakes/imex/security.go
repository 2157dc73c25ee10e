package imex

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"time"
)

// Security is how daemons authenticate each other: by certificates of an authority that both trust. Files are read when a daemon starts,
// and never again; whether the real daemon reads renewed ones is not documented.
type Security struct {
	// Enabled is IMEX_ENABLE_AUTH_ENCRYPTION, Mode and Source are IMEX_AUTH_ENCRYPTION_MODE and IMEX_AUTH_SOURCE.
	Enabled      bool
	Mode, Source string
	// Server is the daemon's certificate for those that connect to it, with the authority of theirs; Client that for those that it connects
	// to.
	Server, Client KeyFiles
	// Target is the name that the certificate of a server must have (IMEX_SECURITY_TARGET_OVERRIDE); empty: the peer's own in
	// the list of nodes.
	Target string
}

// KeyFiles are paths of PEM files.
type KeyFiles struct{ Key, Cert, Authority string }

// set takes a key of the configuration; false: the key is not one of these.
func (s *Security) set(key, value string) (known bool, err error) {
	files := map[string]*string{
		"IMEX_SERVER_KEY": &s.Server.Key, "IMEX_SERVER_CERT": &s.Server.Cert, "IMEX_SERVER_CERT_AUTH": &s.Server.Authority,
		"IMEX_CLIENT_KEY": &s.Client.Key, "IMEX_CLIENT_CERT": &s.Client.Cert, "IMEX_CLIENT_CERT_AUTH": &s.Client.Authority,
		"IMEX_AUTH_ENCRYPTION_MODE": &s.Mode, "IMEX_AUTH_SOURCE": &s.Source, "IMEX_SECURITY_TARGET_OVERRIDE": &s.Target,
	}
	if target := files[key]; target != nil {
		*target = value
		return true, nil
	}
	if key == "IMEX_ENABLE_AUTH_ENCRYPTION" {
		s.Enabled, err = strconv.ParseBool(value)
		return true, err
	}
	return false, nil
}

// check returns the reason why a daemon with this configuration cannot start: as with the real one, a mode or source that is empty or
// unknown.
func (s *Security) check() error {
	switch {
	case !s.Enabled:
		return nil
	case s.Mode != "" && s.Mode != "SSL_TLS":
		return fmt.Errorf("IMEX_AUTH_ENCRYPTION_MODE=%s: this fake supports SSL_TLS only", s.Mode)
	case s.Source != "FILE":
		return fmt.Errorf("IMEX_AUTH_SOURCE=%s: this fake supports FILE only", s.Source)
	}
	return nil
}

// handshakeTimeout bounds one handshake.
const handshakeTimeout = 2 * time.Second

// load reads the files; both results are nil without authentication.
func (s *Security) load() (server, client *tls.Config, err error) {
	if !s.Enabled {
		return nil, nil, nil
	}
	serverPair, accepted, errServer := s.Server.load("IMEX_SERVER")
	clientPair, trusted, errClient := s.Client.load("IMEX_CLIENT")
	if err := errors.Join(errServer, errClient); err != nil {
		return nil, nil, err
	}
	server = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{serverPair},
		ClientAuth: tls.RequireAndVerifyClientCert, ClientCAs: accepted}
	client = &tls.Config{MinVersion: tls.VersionTLS12, Certificates: []tls.Certificate{clientPair}, RootCAs: trusted, ServerName: s.Target}
	return server, client, nil
}

func (f KeyFiles) load(prefix string) (tls.Certificate, *x509.CertPool, error) {
	pair, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return pair, nil, fmt.Errorf("%s_CERT=%s and %s_KEY=%s: %w", prefix, f.Cert, prefix, f.Key, err)
	}
	pool, err := authorities(f.Authority)
	if err != nil {
		return pair, nil, fmt.Errorf("%s_CERT_AUTH=%s: %w", prefix, f.Authority, err)
	}
	return pair, pool, nil
}

// authorities reads a file of certificates of authorities.
func authorities(path string) (*x509.CertPool, error) {
	rest, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	pool, count := x509.NewCertPool(), 0
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		cert, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, err
		}
		if !cert.IsCA {
			return nil, fmt.Errorf("the certificate of %q does not belong to an authority", cert.Subject.CommonName)
		}
		pool.AddCert(cert)
		count++
	}
	if count == 0 {
		return nil, errors.New("the file has no certificate")
	}
	return pool, nil
}

// toPeer makes a connection to a peer secure.
func (d *Daemon) toPeer(conn net.Conn, host string) (net.Conn, error) {
	if d.client == nil {
		return conn, nil
	}
	config := d.client.Clone()
	if config.ServerName == "" {
		config.ServerName = host
	}
	return handshake(tls.Client(conn, config))
}

// fromPeer makes a connection of a peer secure.
func (d *Daemon) fromPeer(conn net.Conn) (net.Conn, error) {
	if d.server == nil {
		return conn, nil
	}
	return handshake(tls.Server(conn, d.server))
}

func handshake(conn *tls.Conn) (net.Conn, error) {
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, err
	}
	//nolint:noctx // the end of the daemon closes the connection, and the deadline bounds it
	if err := conn.Handshake(); err != nil {
		return nil, err
	}
	return conn, nil
}
