package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"

	"kvferry/kv"
)

// launcher starts nodes that are driven.
type launcher interface {
	// start starts a node that joins the one at address join, "" for none.
	start(name, join string) (process, error)
}

// process is a started node. Its output ends when it has ended.
type process interface {
	input() io.WriteCloser
	output() io.Reader
	pid() int
	wait() error // once, after the end of output
	kill()       // at once; may be repeated
}

// processes launches `kvferry run --drive`, each with a log of its own.
type processes struct {
	executable, logs, cluster string
	provider                  string // "": what nodes choose
}

type osProcess struct {
	command *exec.Cmd
	in      io.WriteCloser
	out     io.Reader
	log     *os.File
}

func (p *processes) start(name, join string) (process, error) {
	args := []string{"run", "--drive", "--name", name, "--bind", "127.0.0.1:0", "--cluster", p.cluster}
	if p.provider != "" {
		args = append(args, "--providers", p.provider)
	}
	if join != "" {
		args = append(args, "--join", join)
	}
	log, err := os.Create(filepath.Join(p.logs, name+".log"))
	if err != nil {
		return nil, err
	}
	c := exec.Command(p.executable, args...)
	c.Stderr = log
	// A Ctrl-C in the terminal is for the demo, which stops its nodes in order.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, inErr := c.StdinPipe()
	out, outErr := c.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	if err := c.Start(); err != nil {
		return nil, errors.Join(err, log.Close())
	}
	return &osProcess{c, in, out, log}, nil
}

func (p *osProcess) input() io.WriteCloser { return p.in }
func (p *osProcess) output() io.Reader     { return p.out }
func (p *osProcess) pid() int              { return p.command.Process.Pid }
func (p *osProcess) wait() error           { return errors.Join(p.command.Wait(), p.log.Close()) }

// kill does not fail but for a process that has ended.
func (p *osProcess) kill() { _ = p.command.Process.Kill() }

// demoNode is a node of the demo as its parent sees it. The loop of play owns it.
type demoNode struct {
	name     string
	role     string // prefill or decode
	instance int    // decode: which
	rank     kv.Rank

	process  process
	pid      int
	address  string
	commands chan *driveCommand // to its writer; closed at the end

	reached  string // the last event of the start
	ended    bool
	endError error // nil: in order
	lastWord string
	stopped  bool

	rooms int
	bytes uint64
}

func (n *demoNode) instanceName() string {
	if n.role == "prefill" {
		return "prefill"
	}
	return fmt.Sprintf("decode-%d", n.instance)
}

// heard is an event of a node, or its end.
type heard struct {
	node  *demoNode
	event *driveEvent // nil: it has ended
	err   error
}

// commandQueue is more than a node is ever asked at once: its rooms, twice.
const commandQueue = 1024

// launch starts the process of a node and its reader and writer. The reader ends
// with the process, the writer with commands or the process.
func (n *demoNode) launch(l launcher, join string, hear chan<- heard, done <-chan struct{}) error {
	p, err := l.start(n.name, join)
	if err != nil {
		return fmt.Errorf("start %s: %w", n.name, err)
	}
	n.process, n.pid = p, p.pid()
	commands := make(chan *driveCommand, commandQueue)
	n.commands = commands
	say := func(h heard) {
		select {
		case hear <- h:
		case <-done: // nobody listens any more
		}
	}
	go func() {
		decoder := json.NewDecoder(p.output())
		for {
			e := new(driveEvent)
			if err := decoder.Decode(e); err != nil {
				if !errors.Is(err, io.EOF) {
					p.kill() // it does not speak as agreed
				}
				say(heard{node: n, err: p.wait()})
				return
			}
			say(heard{node: n, event: e})
		}
	}()
	go func() {
		encoder := json.NewEncoder(p.input())
		for c := range commands {
			if encoder.Encode(c) != nil {
				break // it has ended: the reader tells
			}
		}
		_ = p.input().Close() // of an ended process it fails
	}()
	return nil
}

// tell gives a command to the node. One that does not take them is stuck: it is
// killed, and its end is heard.
func (n *demoNode) tell(c *driveCommand) {
	if n.ended || n.stopped {
		return
	}
	select {
	case n.commands <- c:
	default:
		n.process.kill()
	}
}

// close ends the input of the node: it stops, if it has not.
func (n *demoNode) close() {
	if n.commands != nil {
		close(n.commands)
		n.commands = nil
	}
}

// death is how a node ended, for a reason.
func (n *demoNode) death() string {
	text := n.name + " died"
	if n.lastWord != "" {
		return text + ": " + n.lastWord
	}
	if n.endError != nil {
		return text + ": " + n.endError.Error()
	}
	return text + ": it ended by itself"
}

// remaining is the time until the context's deadline, at most limit.
func remaining(ctx context.Context, limit time.Duration) time.Duration {
	if deadline, ok := ctx.Deadline(); ok {
		return max(time.Millisecond, min(limit, time.Until(deadline)))
	}
	return limit
}
