package verbs

import (
	"fmt"
	"math"
	"syscall"
)

// MemoryError is memory that could not be registered.
type MemoryError struct {
	Device string
	Bytes  uint64
	DMABuf bool
	Limit  uint64 // of locked memory of this process; math.MaxUint64: none
	Err    syscall.Errno
}

func (e *MemoryError) Error() string {
	text := fmt.Sprintf("verbs: register %d bytes with %s: %v", e.Bytes, e.Device, e.Err)
	switch {
	case e.DMABuf && (e.Err == syscall.EOPNOTSUPP || e.Err == syscall.ENOSYS):
		text += ": it is a dma-buf, which this library, kernel or driver cannot register (rdma-core 34, Linux 5.12, and a driver that has it)"
	case e.Err == syscall.ENOMEM && e.Limit != math.MaxUint64:
		text += fmt.Sprintf(": registered memory is locked, and this process may lock %d bytes in all: raise it"+
			" (ulimit -l unlimited; LimitMEMLOCK=infinity of the systemd unit; CAP_IPC_LOCK of a container)", e.Limit)
	}
	return text
}

func (e *MemoryError) Unwrap() error { return e.Err }
