package bench

import (
	"fmt"

	"kvferry/transport/rdma"
	"kvferry/transport/rdma/shm"
	"kvferry/transport/rdma/tcp"
	"kvferry/transport/rdma/verbs"
)

// Providers are those that can be measured. mem lives in one process; verbs needs RDMA
// devices.
var Providers = []string{"tcp", "shm", "mem", "verbs"}

// openProvider opens a provider that has other processes for peers.
func openProvider(name string, connections int) (rdma.Provider, error) {
	switch name {
	case "tcp":
		return opened(tcp.Listen(tcp.Config{Bind: "127.0.0.1:0", Connections: connections}))
	case "shm":
		return opened(shm.Listen(shm.Config{}))
	case "verbs":
		return opened(verbs.Listen(verbs.Config{Bind: "127.0.0.1:0", QueuePairs: connections}))
	}
	return nil, fmt.Errorf("provider is %q, want tcp, shm or verbs", name)
}

// opened is nothing at all after an error, and not a provider that is nil.
func opened[P rdma.Provider](p P, err error) (rdma.Provider, error) {
	if err != nil {
		return nil, err
	}
	return p, nil
}
