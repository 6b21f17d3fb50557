package shm

import (
	"testing"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/rdmatest"
)

func listen(t testing.TB, c Config) *Provider {
	t.Helper()
	p, err := Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestContract(t *testing.T) {
	rdmatest.Run(t, func(t *testing.T) (a, b rdma.Provider) {
		return listen(t, Config{}), listen(t, Config{})
	})
}
