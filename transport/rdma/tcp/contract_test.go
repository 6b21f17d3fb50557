package tcp

import (
	"testing"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/rdmatest"
)

func listen(t testing.TB, c Config) *Provider {
	t.Helper()
	c.Bind = "127.0.0.1:0"
	p, err := Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	return p
}

func TestContract(t *testing.T) {
	rdmatest.Run(t, func(t *testing.T) (a, b rdma.Provider) {
		return listen(t, Config{Checksum: ChecksumOff}), listen(t, Config{})
	})
}

// TestContractWithSmallFrames cuts rows and units, and refuses with many frames in
// flight.
func TestContractWithSmallFrames(t *testing.T) {
	rdmatest.Run(t, func(t *testing.T) (a, b rdma.Provider) {
		c := Config{FrameBytes: 100_000, Connections: 3, Checksum: ChecksumFull}
		return listen(t, c), listen(t, c)
	})
}
