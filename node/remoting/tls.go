package remoting

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
)

// TLS is mutual: each side shows a certificate of the one authority. TLS 1.3.
type TLS struct {
	// CAFile is the authority that peers' certificates are signed by, PEM.
	CAFile string
	// CertFile and KeyFile are this node's certificate, for both directions (server
	// and client authentication), and its key, PEM.
	CertFile, KeyFile string
	// ServerName is the name that peers' certificates must have, where all share
	// one. "" means the host that is dialled, so certificates name their host or
	// IP address.
	ServerName string
}

// load reads the files, once: a change of them counts from the next start.
func (t TLS) load() (server, client *tls.Config, err error) {
	certificate, err := tls.LoadX509KeyPair(t.CertFile, t.KeyFile)
	if err != nil {
		return nil, nil, fmt.Errorf("remoting: tls: certificate: %w", err)
	}
	pem, err := os.ReadFile(t.CAFile)
	if err != nil {
		return nil, nil, fmt.Errorf("remoting: tls: authority: %w", err)
	}
	authority := x509.NewCertPool()
	if !authority.AppendCertsFromPEM(pem) {
		return nil, nil, fmt.Errorf("remoting: tls: authority %s: got no certificate in it", t.CAFile)
	}
	server = &tls.Config{
		Certificates: []tls.Certificate{certificate},
		ClientCAs:    authority,
		ClientAuth:   tls.RequireAndVerifyClientCert,
		MinVersion:   tls.VersionTLS13,
	}
	client = &tls.Config{
		Certificates: []tls.Certificate{certificate},
		RootCAs:      authority,
		ServerName:   t.ServerName,
		MinVersion:   tls.VersionTLS13,
	}
	return server, client, nil
}
