package remoting

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"sync/atomic"

	"github.com/asynkron/protoactor-go/actor"
	"github.com/asynkron/protoactor-go/remote"
	"go.uber.org/zap"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
)

// portTries is how often a free port is looked for: another process may take it
// between the look and the listen.
const portTries = 5

// Remote is a started remoting.
type Remote struct {
	system   *actor.ActorSystem
	remote   *remote.Remote
	log      *zap.Logger
	gate     *gate
	firewall *firewall
	lines    *lines
	address  string
	close    sync.Once
}

// Start listens, and gives system its address. Call it before anything is spawned
// in the system: a PID that was made earlier is of no use to other nodes. A system
// that already has remoting of its own is refused: use that, with PeerDown's event
// published on its event stream.
func Start(system *actor.ActorSystem, config Config, log *zap.Logger) (*Remote, error) {
	c, err := config.resolve()
	if err != nil {
		return nil, err
	}
	where, err := c.place()
	if err != nil {
		return nil, err
	}
	if len(system.ProcessRegistry.RemoteHandlers) > 0 {
		return nil, errors.New("remoting: got a system that has remoting already, want one without")
	}
	if atomic.LoadUint64(&system.ProcessRegistry.SequenceID) < c.SequenceBase {
		atomic.StoreUint64(&system.ProcessRegistry.SequenceID, c.SequenceBase)
	}
	r := &Remote{
		system: system, log: log,
		gate:     &gate{system: system, door: newDoor(), max: c.MessageMax, log: log},
		lines:    newLines(),
		firewall: &firewall{prefix: c.PeerPrefix, max: c.MessageMax, log: log},
	}
	options, err := r.options(c)
	if err != nil {
		return nil, err
	}
	if err := r.listen(where, options); err != nil {
		return nil, err
	}
	// The framework registered its resolver last; the gate goes before it.
	handlers := system.ProcessRegistry.RemoteHandlers
	handlers[len(handlers)-1] = r.gate.before(handlers[len(handlers)-1])
	r.address = system.Address()
	log.Info("remoting started", zap.String("address", r.address), zap.String("bind", c.Bind), zap.Bool("tls", c.TLS != nil))
	return r, nil
}

// options is the framework's configuration, but for the place.
func (r *Remote) options(c Config) ([]remote.ConfigOption, error) {
	server := []grpc.ServerOption{
		grpc.MaxRecvMsgSize(c.frameMax()),
		grpc.MaxConcurrentStreams(16),
		grpc.ConnectionTimeout(handshakeTimeout),
		grpc.WaitForHandlers(true), // Close leaves nothing running
		// Peers ping every KeepaliveTime, on idle connections too. Without this they
		// would be cut off for it.
		grpc.KeepaliveEnforcementPolicy(keepalive.EnforcementPolicy{MinTime: pingsLeast, PermitWithoutStream: true}),
		grpc.ChainStreamInterceptor(r.firewall.stream),
		grpc.ChainUnaryInterceptor(r.firewall.unary),
	}
	dial := []grpc.DialOption{
		grpc.WithNoProxy(), // peers are dialled themselves, whatever the environment says
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.DefaultConfig, MinConnectTimeout: dialLeast}),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: c.KeepaliveTime, Timeout: c.KeepaliveTimeout}),
		grpc.WithChainStreamInterceptor(r.lines.open),
		grpc.WithDefaultCallOptions(grpc.MaxCallSendMsgSize(c.frameMax())),
	}
	transport := insecure.NewCredentials()
	if c.TLS != nil {
		accept, connect, err := c.TLS.load()
		if err != nil {
			return nil, err
		}
		server = append(server, grpc.Creds(credentials.NewTLS(accept)))
		transport = credentials.NewTLS(connect)
	}
	return []remote.ConfigOption{
		remote.WithServerOptions(server...),
		remote.WithDialOptions(append(dial, grpc.WithTransportCredentials(transport))...),
		remote.WithEndpointWriterBatchSize(batch),
		remote.WithEndpointWriterQueueSize(256), // to begin with: the default takes 16 MB a peer
	}, nil
}

// listen starts the framework, on a free port where none is given. It looks first
// whether it can: the framework finds out too late to leave no trace of itself.
func (r *Remote) listen(where place, options []remote.ConfigOption) error {
	tries := 1
	if where.port == 0 {
		tries = portTries
	}
	var err error
	for range tries {
		var port int
		if port, err = canListen(where); err != nil {
			return err
		}
		if err = r.start(where, port, options); err == nil {
			return nil
		}
	}
	return err
}

// canListen is the port that can be listened on.
func canListen(where place) (int, error) {
	l, err := net.Listen("tcp", net.JoinHostPort(where.host, strconv.Itoa(where.port)))
	if err != nil {
		return 0, fmt.Errorf("remoting: %w", err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	if err := l.Close(); err != nil {
		return 0, fmt.Errorf("remoting: %w", err)
	}
	return port, nil
}

// start turns the framework's panics into an error.
func (r *Remote) start(where place, port int, options []remote.ConfigOption) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("remoting: listen on %s:%d: %v", where.bindHost(), port, p)
		}
	}()
	options = append(options[:len(options):len(options)], remote.WithAdvertisedHost(where.address(port)))
	conf := remote.Configure(where.bindHost(), port, options...)
	conf.MaxRetryCount = 1 // each further retry leaks a connection that redials for ever
	r.remote = remote.NewRemote(r.system, conf)
	r.remote.Start()
	return nil
}

// Address is host:port, what PIDs carry and peers dial.
func (r *Remote) Address() string { return r.address }

// Dropped is how many messages of peers the firewall did not let in.
func (r *Remote) Dropped() int64 { return r.firewall.dropped.Load() }

// PeerDown says that the node at this address is gone, or is another one now: its
// connection is closed, who watches an actor there sees it terminated at once, and
// the next message connects anew. Messages that were sent before may still arrive;
// those of the next moments may get lost with the old connection.
func (r *Remote) PeerDown(address string) {
	r.system.EventStream.Publish(&remote.EndpointTerminatedEvent{Address: address})
}

// Close stops listening and ends all connections. What was not sent yet is lost:
// say goodbye to peers first, and wait for their answer. Who watches an actor of
// another node sees it terminated; from now on messages to other nodes become dead
// letters. It takes up to 4 s while a peer is being dialled.
//
// The order: nothing goes out any more, nothing comes in, the connections end (the
// framework tells EndpointTerminated for each), then its actors, then the listener.
// The framework's own shutdown is not used: it drops the table of connections while
// their readers still use it.
func (r *Remote) Close() error {
	var failed error
	r.close.Do(func() {
		r.gate.door.shut()
		r.gate.door.wait()
		r.firewall.closed.Store(true)
		r.lines.end()
		for _, id := range []string{"EndpointSupervisor", "activator"} {
			if err := r.system.Root.StopFuture(r.system.NewLocalPID(id)).Wait(); err != nil {
				failed = errors.Join(failed, fmt.Errorf("remoting: close: stop %s: %w", id, err))
			}
		}
		r.remote.Shutdown(false)
		r.log.Info("remoting stopped", zap.String("address", r.address), zap.Int64("dropped", r.Dropped()))
	})
	return failed
}
