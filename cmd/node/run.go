package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"

	"kvferry/cluster"
	"kvferry/node"
	"kvferry/transport/rdma/verbs"
)

// leaveWait is how long a node that was asked to stop waits for its open rooms
// before it ends them. A room writes for seconds; a supervisor that kills after
// 30 s is common.
const leaveWait = 20 * time.Second

// runFlags are the flags of run.
type runFlags struct {
	config   node.Config
	keyFile  string
	devices  []string
	logLevel string
	logJSON  bool
	drive    bool
}

func newRunCommand() *cobra.Command {
	var f runFlags
	c := &cobra.Command{
		Use:   "run",
		Short: "Run one node as a member of a cluster",
		Long: `Run one node as a member of a cluster.

The node finds the others by gossip, starting from those that --join names; it
does not matter who starts first. It listens on four ports: gossip (UDP and TCP,
--bind), its actors (one above, --actor-port), the data of the tcp provider (two above,
--data-port), and, where there are RDMA devices, what makes their connections (three
above, --verbs-port). Every node must be able to reach every other at them.

Data goes by the first of --providers that both nodes of a pair have and that connects
them: shm, shared memory, between processes of one user on one host; verbs, where both
have RDMA devices that reach each other; else tcp. The log says which, and why not
another. kvferry doctor shows the devices, and which are used and why.

On SIGINT or SIGTERM it takes no new rooms, waits for the open ones, says goodbye
and leaves. A second signal ends it at once.`,
		Example: `  kvferry run --name prefill-0 --bind 10.0.0.1:7946
  kvferry run --name decode-0 --bind 10.0.0.2:7946 --join 10.0.0.1:7946 --gossip-key-file cluster.key`,
		Args: cobra.NoArgs,
		RunE: func(c *cobra.Command, _ []string) error { return run(c.Context(), c, &f) },
	}
	flags := c.Flags()
	flags.StringVar(&f.config.Name, "name", hostname(), "name of the node, unique in the cluster")
	flags.StringVar(&f.config.Bind, "bind", fmt.Sprintf("0.0.0.0:%d", cluster.DefaultPort), "ip:port of gossip; port 0 takes free ones")
	flags.StringVar(&f.config.Advertise, "advertise", "", "ip or ip:port that others are told (default: what --bind says)")
	flags.IntVar(&f.config.ActorPort, "actor-port", 0, "port of the actors (default: one above that of --bind)")
	flags.IntVar(&f.config.DataPort, "data-port", 0, "port of the tcp provider (default: two above that of --bind)")
	flags.IntVar(&f.config.VerbsPort, "verbs-port", 0, "port at which the verbs provider makes connections (default: three above that of --bind)")
	flags.StringSliceVar(&f.config.Providers, "providers", nil, "what carries the data, the best first (default "+strings.Join(node.Providers(), ",")+")")
	flags.StringVar((*string)(&f.config.Checksum), "checksum", "", "frames of tcp that are checked by CRC32C: off, sampled or full (default sampled)")
	flags.StringSliceVar(&f.devices, "rdma-device", nil, "RDMA port that is used, instead of a choice: DEVICE, DEVICE:PORT or DEVICE:PORT/GID")
	flags.IntVar(&f.config.Verbs.TrafficClass, "rdma-traffic-class", 0, "traffic class of RoCE packets, 0 to 255: the DSCP times 4")
	flags.IntVar(&f.config.Verbs.ServiceLevel, "rdma-service-level", 0, "service level of RDMA packets: 0 to 15 on InfiniBand, 0 to 7 on RoCE")
	flags.IntVar(&f.config.Verbs.QueuePairs, "rdma-queue-pairs", 0, "queue pairs between two ports, 1 to 16 (default 2)")
	flags.StringSliceVar(&f.config.Join, "join", nil, "host:port of the gossip of other nodes; tried for ever")
	flags.StringVar(&f.config.Cluster, "cluster", "", "label of the cluster; others are not heard (default kvferry)")
	flags.StringVar(&f.keyFile, "gossip-key-file", "", "file with a base64 key of 16, 24 or 32 bytes that encrypts gossip")
	flags.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	flags.BoolVar(&f.logJSON, "log-json", false, "log as JSON")
	flags.BoolVar(&f.drive, "drive", false, "take commands from standard input; for the demo")
	_ = flags.MarkHidden("drive")
	return c
}

// run runs a node until a signal, or until it fails.
func run(ctx context.Context, c *cobra.Command, f *runFlags) error {
	log, err := newLogger(c, f)
	if err != nil {
		return &exitError{code: 1, err: err}
	}
	defer func() { _ = log.Sync() }() // standard error cannot be synced everywhere
	if f.config.Log = log; f.keyFile != "" {
		if f.config.GossipKey, err = cluster.ReadKey(f.keyFile); err != nil {
			return &exitError{code: 1, err: err}
		}
	}
	for _, d := range f.devices {
		pick, err := verbs.ParsePick(d)
		if err != nil {
			return &exitError{code: 1, err: err}
		}
		f.config.Verbs.Devices = append(f.config.Verbs.Devices, pick)
	}
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	n, err := node.Start(ctx, f.config)
	if err != nil {
		return &exitError{code: 1, err: err}
	}
	if f.drive {
		err = drive(ctx, n, c.InOrStdin(), c.OutOrStdout(), log)
	} else {
		select {
		case <-ctx.Done():
		case <-n.Done():
			err = n.Err()
		}
	}
	stop() // a second signal ends the process
	leave, cancel := context.WithTimeout(context.Background(), leaveWait)
	defer cancel()
	if err := errors.Join(err, n.Close(leave)); err != nil && !errors.Is(err, context.Canceled) {
		return &exitError{code: 1, err: err}
	}
	return nil
}

// newLogger logs to standard error: standard output is for results.
func newLogger(c *cobra.Command, f *runFlags) (*zap.Logger, error) {
	level, err := zapcore.ParseLevel(f.logLevel)
	if err != nil {
		return nil, fmt.Errorf("log-level: got %q, want debug, info, warn or error", f.logLevel)
	}
	config := zap.NewProductionEncoderConfig()
	config.EncodeTime = zapcore.ISO8601TimeEncoder
	encoder := zapcore.NewConsoleEncoder(config)
	if f.logJSON {
		encoder = zapcore.NewJSONEncoder(config)
	}
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(zapcore.AddSync(c.ErrOrStderr())), level)), nil
}

// hostname is a name that every machine has; "" where it cannot be read, which
// the node then refuses by name.
func hostname() string {
	name, err := os.Hostname()
	if err != nil {
		return ""
	}
	return name
}
