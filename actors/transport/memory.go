package transport

import (
	"errors"
	"fmt"

	"github.com/asynkron/protoactor-go/actor"
	"go.uber.org/zap"

	"kvferry/actors"
	"kvferry/messages"
	"kvferry/transport/rdma"
)

// onRegisterMemory registers with every provider, or with none.
func (a *Actor) onRegisterMemory(c actor.Context, m *actors.RegisterMemory) {
	regions := make([]*messages.Region, 0, len(m.Memory))
	for i, memory := range m.Memory {
		region := &messages.Region{Bytes: memory.Len()}
		regions = append(regions, region)
		for _, p := range a.providers {
			d, err := p.Register(memory)
			if errors.Is(err, rdma.ErrDeviceMemory) {
				err = fmt.Errorf("%w: a node with such memory has providers that reach it, and no other: verbs alone", err)
			}
			if err != nil {
				a.deregister(regions)
				c.Send(m.Owner, &actors.MemoryRegistered{
					Err: fmt.Errorf("register memory %d (%q, %d bytes) with %s: %w", i, memory.Name(), memory.Len(), p.Name(), err),
				})
				return
			}
			region.Keys = append(region.Keys, &messages.RegionKey{Provider: p.Name(), Region: uint64(d.Region), Opaque: d.Opaque})
		}
	}
	a.memory[m.Owner.Id] = regions
	c.Send(m.Owner, &actors.MemoryRegistered{Regions: regions})
}

func (a *Actor) deregister(regions []*messages.Region) {
	for _, region := range regions {
		for _, key := range region.Keys {
			p := a.provider(key.Provider)
			if err := p.Deregister(rdma.RegionID(key.Region)); err != nil {
				a.env.Log.Error("deregister; the memory stays reachable until the node stops",
					zap.String("provider", key.Provider), zap.Uint64("region", key.Region), zap.Error(err))
			}
		}
	}
}

// regionID is the provider's name for region i of an engine.
func regionID(regions []*messages.Region, i uint32, provider string) (rdma.RegionID, error) {
	if int(i) >= len(regions) {
		return 0, fmt.Errorf("region %d is not registered, the engine has %d", i, len(regions))
	}
	for _, key := range regions[i].Keys {
		if key.Provider == provider {
			return rdma.RegionID(key.Region), nil
		}
	}
	return 0, fmt.Errorf("region %d is not registered with provider %s", i, provider)
}
