package tests

import (
	"context"
	"sync"
	"time"

	"kvferry/transport/rdma"
)

// slowRevoker answers Revoke a second late.
type slowRevoker struct {
	rdma.Provider
	mu   sync.Mutex
	open int
}

func slowRevoke(p rdma.Provider) *slowRevoker { return &slowRevoker{Provider: p} }

func (s *slowRevoker) pending() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.open
}

func (s *slowRevoker) Revoke(id rdma.GrantID) {
	s.mu.Lock()
	s.open++
	s.mu.Unlock()
	time.AfterFunc(time.Second, func() {
		s.mu.Lock()
		s.open--
		s.mu.Unlock()
		s.Provider.Revoke(id)
	})
}

type watchClose struct {
	rdma.Provider
	closed chan struct{}
	once   sync.Once
}

func (w *watchClose) Close() error {
	err := w.Provider.Close()
	w.once.Do(func() { close(w.closed) })
	return err
}

var _ = context.Background

// spy counts the grants in force.
type spy struct {
	rdma.Provider
	mu     sync.Mutex
	grants map[rdma.GrantID]bool
}

func (s *spy) Grant(g rdma.Grant) error {
	err := s.Provider.Grant(g)
	if err == nil {
		s.mu.Lock()
		s.grants[g.ID] = true
		s.mu.Unlock()
	}
	return err
}

func (s *spy) Revoke(id rdma.GrantID) {
	s.mu.Lock()
	delete(s.grants, id)
	s.mu.Unlock()
	s.Provider.Revoke(id)
}

func (s *spy) open() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.grants)
}
