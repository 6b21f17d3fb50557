package remoting_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/asynkron/protoactor-go/remote"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
)

// authority is a certificate authority in a folder, with one certificate for
// 127.0.0.1 signed by it.
func authority(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	caKey, ca := certificate(t, dir, "ca", nil, nil)
	certificate(t, dir, "", ca, caKey)
	return dir
}

func certificate(t *testing.T, dir, name string, parent *x509.Certificate, parentKey *ecdsa.PrivateKey) (*ecdsa.PrivateKey, *x509.Certificate) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "kvferry test"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth},
	}
	file := "cert.pem"
	if parent == nil {
		c.IsCA, c.BasicConstraintsValid, c.KeyUsage = true, true, x509.KeyUsageCertSign
		parent, parentKey, file = c, key, "ca.pem"
	}
	der, err := x509.CreateCertificate(rand.Reader, c, parent, &key.PublicKey, parentKey)
	if err != nil {
		t.Fatal(err)
	}
	keyDER, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	write := func(file, kind string, b []byte) {
		if err := os.WriteFile(filepath.Join(dir, file), pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: b}), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(file, "CERTIFICATE", der)
	if name == "" {
		write("key.pem", "EC PRIVATE KEY", keyDER)
	}
	return key, c
}

func TestWithTLSOnlyNodesOfTheAuthorityTalk(t *testing.T) {
	ours, theirs := authority(t), authority(t)
	a, b := start(t, "127.0.0.1:0", ours), start(t, "127.0.0.1:0", ours)
	stranger, plain := start(t, "127.0.0.1:0", theirs), start(t, "127.0.0.1:0", "")
	a.do("send %s %s 1", b.address, echo)
	a.expect("got 1001")
	for _, p := range []*process{stranger, plain} {
		p.do("send %s %s 2", b.address, echo)
		p.expect("dead *messages.Envelope")
	}
	a.do("send %s %s 3", b.address, echo)
	b.expect("got 3", "got 2")
	// No certificate at all, but the right authority.
	pool := x509.NewCertPool()
	text, err := os.ReadFile(filepath.Join(ours, "ca.pem"))
	if err != nil || !pool.AppendCertsFromPEM(text) {
		t.Fatal(err)
	}
	conn, err := grpc.NewClient("passthrough:///"+b.address, grpc.WithNoProxy(),
		grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{RootCAs: pool})))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	stream, err := remote.NewRemotingClient(conn).Receive(ctx)
	if err == nil {
		_, err = stream.Recv()
	}
	if err == nil {
		t.Error("got a stream without a certificate")
	}
	a.quit()
	b.quit()
}
