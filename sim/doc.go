// Package sim plays a bad day from one seed: nodes with the real machines of
// transfer, pairing and cluster, real bytes in small pools, and around them a simulated
// network, gossip, network card and clocks. The seed draws the deployment, the workload
// and the faults; the same seed plays the same day on every machine. What must hold is
// checked as it goes, by the invariants of docs/protocol.md. After the faults everything
// has to end, and every count to be back.
//
// Nothing here waits: time is a number, and everything that happens is an entry of one
// queue.
package sim
