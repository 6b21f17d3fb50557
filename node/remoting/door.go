package remoting

import (
	"context"
	"sync"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// door counts who is inside, and can be shut.
type door struct {
	mu     sync.Mutex
	isShut bool
	inside int
	empty  chan struct{} // closed once shut and nobody is inside
}

func newDoor() *door { return &door{empty: make(chan struct{})} }

// enter lets one in, who leaves afterwards; false after shut. It may be nested.
func (d *door) enter() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.isShut {
		return false
	}
	d.inside++
	return true
}

func (d *door) leave() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.inside--
	if d.isShut && d.inside == 0 {
		close(d.empty)
	}
}

// shut lets nobody in any more. It is called once.
func (d *door) shut() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.isShut = true
	if d.inside == 0 {
		close(d.empty)
	}
}

// wait returns when all are out after shut.
func (d *door) wait() { <-d.empty }

// lines are the connections that this node opened. The framework has no way to
// close one that is being opened: told that the peer is down meanwhile, it opens
// another. So they are ended from below.
type lines struct {
	door *door
	life context.Context
	cut  context.CancelFunc
}

func newLines() *lines {
	l := &lines{door: newDoor()}
	l.life, l.cut = context.WithCancel(context.Background())
	return l
}

// end ends all connections, whatever they are doing, and lets no more be opened. It
// returns when their readers have seen it, or after a second: one that a peer never
// answered rightly has no reader.
func (l *lines) end() {
	l.door.shut()
	l.cut()
	select {
	case <-l.door.empty:
	case <-time.After(endWait):
	}
}

// open is the interceptor through which the framework opens its streams.
func (l *lines) open(ctx context.Context, desc *grpc.StreamDesc, conn *grpc.ClientConn, method string,
	next grpc.Streamer, options ...grpc.CallOption) (grpc.ClientStream, error) {
	if !l.door.enter() {
		return nil, status.Error(codes.Canceled, "remoting is closed")
	}
	ctx, cancel := context.WithCancel(ctx)
	forget := context.AfterFunc(l.life, cancel)
	over := sync.OnceFunc(func() {
		forget()
		cancel()
		l.door.leave()
	})
	stream, err := next(ctx, desc, conn, method, options...)
	if err != nil {
		over()
		return nil, err
	}
	return &line{stream, over}, nil
}

// line is one stream. The framework reads it until it ends, so that is where it is
// over.
type line struct {
	grpc.ClientStream
	over func()
}

// RecvMsg receives, or ends the line.
func (l *line) RecvMsg(m any) error {
	err := l.ClientStream.RecvMsg(m)
	if err != nil {
		l.over()
	}
	return err
}

// SendMsg sends, or ends the line.
func (l *line) SendMsg(m any) error {
	err := l.ClientStream.SendMsg(m)
	if err != nil {
		l.over()
	}
	return err
}
