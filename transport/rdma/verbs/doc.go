// Package verbs is for real RDMA, InfiniBand and RoCE, through libibverbs. The
// library is loaded at run time: one binary runs where there is none, and says so.
//
// What is here: the devices of a host, which of their ports and addresses are used
// and why, and the limits that the library tells. The choice is a pure function of
// what sysfs has, so that it is tested on hosts that nobody here has seen. Below the
// provider, which is not here yet: memory, completion queues and queue pairs that write
// chains of rows, and whose fault an error is. tests/softroce runs them in a guest with
// the real library and the real kernel.
//
// All cgo and all unsafe of verbs is in this folder. Without cgo the package builds,
// and Open says that it did.
package verbs
