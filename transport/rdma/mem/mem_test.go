package mem

import (
	"testing"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/rdmatest"
)

func newNetwork(t *testing.T, c Config) *Network {
	t.Helper()
	n, err := NewNetwork(c)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestContract(t *testing.T) {
	rdmatest.Run(t, func(t *testing.T) (a, b rdma.Provider) {
		n := newNetwork(t, Config{})
		return n.Provider("a"), n.Provider("b")
	})
}

func TestContractThroughFaultsThatDoNothing(t *testing.T) {
	rdmatest.Run(t, func(t *testing.T) (a, b rdma.Provider) {
		n := newNetwork(t, Config{})
		return NewFaults(n.Provider("a"), FaultsConfig{}), NewFaults(n.Provider("b"), FaultsConfig{})
	})
}
