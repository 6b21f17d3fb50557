package main

import (
	"os"
	"runtime/pprof"
	"time"
)

// profiled runs a loop with the profiles that the order wants, if any, and makes what
// was used at its end what it cost.
func (n *roomsNode) profiled(o *roomsOrder, loop func() (*roomsAnswer, error)) (*roomsAnswer, error) {
	if o.Profile != "" {
		stop, err := profile(o.Profile)
		if err != nil {
			return nil, err
		}
		defer stop()
	}
	n.count.on.Store(o.Count)
	before := usedCPU()
	a, err := loop()
	if err != nil {
		return nil, err
	}
	if a.CPU -= before; o.Count {
		a.Messages = n.count.take()
	}
	return a, nil
}

// profile starts a CPU profile. stop ends it, and writes beside it what was allocated
// since the process began.
func profile(name string) (stop func(), err error) {
	file, err := os.Create(name + ".pprof")
	if err != nil {
		return nil, err
	}
	if err := pprof.StartCPUProfile(file); err != nil {
		file.Close()
		return nil, err
	}
	return func() {
		pprof.StopCPUProfile()
		file.Close()
		if allocs, err := os.Create(name + "-allocs.pprof"); err == nil { // nobody waits for it
			_ = pprof.Lookup("allocs").WriteTo(allocs, 0)
			allocs.Close()
		}
	}, nil
}

// used is what was used until now, and ends the counting: what follows is not the
// loop's.
func (n *roomsNode) used() time.Duration {
	n.count.on.Store(false)
	return usedCPU()
}
