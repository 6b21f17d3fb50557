package bench

import (
	"fmt"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/shm"
	"kvferry/transport/rdma/tcp"
)

// Providers are those that can be measured. mem lives in one process.
var Providers = []string{"tcp", "shm", "mem"}

// openProvider opens a provider that has other processes for peers.
func openProvider(name string, connections int) (rdma.Provider, error) {
	switch name {
	case "tcp":
		return tcp.Listen(tcp.Config{Bind: "127.0.0.1:0", Connections: connections})
	case "shm":
		return shm.Listen(shm.Config{})
	}
	return nil, fmt.Errorf("provider is %q, want tcp or shm", name)
}
