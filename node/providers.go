package node

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"kvferry/messages"
	"kvferry/transport/rdma"
	"kvferry/transport/rdma/shm"
	"kvferry/transport/rdma/tcp"
)

// maker starts a provider of this node.
type maker struct {
	name string
	make func(c *Config) (rdma.Provider, error)
}

// makers are the providers that there are, the best first: shared memory moves a byte
// once, and only between processes of one host.
var makers = []maker{
	{"shm", func(*Config) (rdma.Provider, error) { return shm.Listen(shm.Config{}) }},
	{"tcp", func(c *Config) (rdma.Provider, error) {
		host, _, err := splitBind(c.Bind)
		if err != nil {
			return nil, err
		}
		return tcp.Listen(tcp.Config{
			Bind:          net.JoinHostPort(host, strconv.Itoa(c.DataPort)),
			AdvertiseHost: c.advertisedHost(),
			Checksum:      c.Checksum,
		})
	}},
}

// Providers names the providers that a Config can have, the best first.
func Providers() (names []string) {
	for _, m := range makers {
		names = append(names, m.name)
	}
	return names
}

func makerOf(name string) int {
	return slices.IndexFunc(makers, func(m maker) bool { return m.name == name })
}

func (c *Config) resolveProviders() error {
	if len(c.Providers) == 0 {
		c.Providers = Providers()
	}
	for i, name := range c.Providers {
		if makerOf(name) < 0 {
			return fmt.Errorf("providers: got %q, want some of %s", name, strings.Join(Providers(), ", "))
		}
		if slices.Contains(c.Providers[:i], name) {
			return fmt.Errorf("providers: got %s twice, want each once", name)
		}
	}
	return nil
}

// providers are the host's, or those that the config names. One that this machine
// cannot have is left out as long as there is another.
func (n *Node) providers() ([]rdma.Provider, error) {
	if len(n.config.Embed.Providers) > 0 {
		return n.config.Embed.Providers, nil
	}
	var started []rdma.Provider
	var failed error
	for _, name := range n.config.Providers {
		p, err := makers[makerOf(name)].make(&n.config)
		if err != nil {
			n.config.Log.Warn("a provider cannot start here; nodes reach this one without it", zap.String("provider", name), zap.Error(err))
			failed = errors.Join(failed, fmt.Errorf("provider %s: %w", name, err))
			continue
		}
		started = append(started, p)
	}
	if len(started) == 0 {
		return nil, failed
	}
	return started, nil
}

func endpoints(providers []rdma.Provider) []*messages.Endpoint {
	var all []*messages.Endpoint
	for _, p := range providers {
		all = append(all, &messages.Endpoint{Provider: p.Name(), Endpoint: p.Endpoint()})
	}
	return all
}
