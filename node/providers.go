package node

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"kvferry/messages"
	"kvferry/transport/rdma"
	"kvferry/transport/rdma/shm"
	"kvferry/transport/rdma/tcp"
	"kvferry/transport/rdma/verbs"
)

// maker starts a provider of this node.
type maker struct {
	name string
	make func(c *Config) (rdma.Provider, error)
}

// makers are the providers that there are, the best first: shared memory moves a byte
// once, and only between processes of one host; RDMA moves it without a processor.
var makers = []maker{
	{"shm", func(*Config) (rdma.Provider, error) { return shm.Listen(shm.Config{}) }},
	{"verbs", func(c *Config) (rdma.Provider, error) {
		host, _, err := splitBind(c.Bind)
		if err != nil {
			return nil, err
		}
		v := c.Verbs
		v.Bind, v.AdvertiseHost = net.JoinHostPort(host, strconv.Itoa(c.VerbsPort)), c.advertisedHost()
		if v.Log == nil {
			v.Log = func(l verbs.Level, text string) { c.Log.Log(verbsLevels[l], text, zap.String("provider", "verbs")) }
		}
		return verbs.Listen(v)
	}},
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

var verbsLevels = map[verbs.Level]zapcore.Level{verbs.Debug: zap.DebugLevel, verbs.Info: zap.InfoLevel, verbs.Warn: zap.WarnLevel}

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
		c.Providers, c.anyProvider = Providers(), true
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
// cannot have is left out as long as there is another, but for devices that were named.
func (n *Node) providers() ([]rdma.Provider, error) {
	if len(n.config.Embed.Providers) > 0 {
		return n.config.Embed.Providers, nil
	}
	var started []rdma.Provider
	var failed error
	for _, name := range n.config.Providers {
		p, err := makers[makerOf(name)].make(&n.config)
		if n.config.anyProvider && errors.Is(err, verbs.ErrNoDevice) { // as on most hosts
			n.config.Log.Debug("a provider has nothing to use here", zap.String("provider", name), zap.Error(err))
			continue
		}
		if err != nil && name == "verbs" && len(n.config.Verbs.Devices) > 0 {
			for _, p := range started {
				_ = p.Close() // nothing was asked of it yet
			}
			return nil, fmt.Errorf("provider %s: %w", name, err)
		}
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
