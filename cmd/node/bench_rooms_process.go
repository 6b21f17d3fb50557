package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// roomsProcess is one of the two nodes as its parent sees it.
type roomsProcess struct {
	role    string
	command *exec.Cmd
	input   io.WriteCloser
	orders  *json.Encoder
	answers chan *roomsAnswer // closed when it has ended
	end     error             // set before that
	log     lastLines
}

// startRoomsProcess starts a node. It ends when its input does, so also when this
// process has died.
func startRoomsProcess(self, role string) (*roomsProcess, error) {
	p := &roomsProcess{role: role, command: exec.Command(self, "bench", "rooms-node"), answers: make(chan *roomsAnswer)}
	p.command.Stderr = &p.log
	// A Ctrl-C in the terminal is for this process, which ends its nodes in order.
	p.command.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, inErr := p.command.StdinPipe()
	out, outErr := p.command.StdoutPipe()
	if err := errors.Join(inErr, outErr); err != nil {
		return nil, err
	}
	if err := p.command.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", role, err)
	}
	p.input, p.orders = in, json.NewEncoder(in)
	go p.read(out)
	return p, nil
}

// read passes on answers, and reaps the process.
func (p *roomsProcess) read(out io.Reader) {
	decoder := json.NewDecoder(out)
	for {
		a := new(roomsAnswer)
		if err := decoder.Decode(a); err != nil {
			if !errors.Is(err, io.EOF) {
				_ = p.command.Process.Kill() // it does not speak as agreed; it may have ended
			}
			break
		}
		p.answers <- a
	}
	p.end = p.command.Wait()
	close(p.answers)
}

// tell gives an order. One that is dead does not take it: hearing tells why.
func (p *roomsProcess) tell(o *roomsOrder) { _ = p.orders.Encode(o) }

// take is an answer that was heard, or why it is none.
func (p *roomsProcess) take(a *roomsAnswer) (*roomsAnswer, error) {
	switch {
	case a == nil:
		err := fmt.Errorf("%s died: %v", p.role, p.end)
		if text := p.log.String(); text != "" {
			err = fmt.Errorf("%w\n%s", err, text)
		}
		return nil, err
	case a.Did == doFailed:
		return nil, fmt.Errorf("%s: %s", p.role, a.Error)
	}
	return a, nil
}

// ask gives an order and waits for its answer.
func (p *roomsProcess) ask(ctx context.Context, o *roomsOrder) (*roomsAnswer, error) {
	p.tell(o)
	return p.hear(ctx)
}

func (p *roomsProcess) hear(ctx context.Context) (*roomsAnswer, error) {
	select {
	case a := <-p.answers:
		return p.take(a)
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// close ends the process, if it has not ended, and returns when it is reaped.
func (p *roomsProcess) close() {
	_ = p.input.Close() // of one that has ended it fails
	kill := time.AfterFunc(roomsLeave, func() { _ = p.command.Process.Kill() })
	defer kill.Stop()
	for range p.answers {
	}
}

// lastLines keeps the end of what a node logs, for when it dies.
type lastLines struct {
	mu   sync.Mutex
	text []byte
}

// lastLinesMax is some ten lines of a log, or most of a stack.
const lastLinesMax = 4 << 10

// Write is called by the goroutine that reads the log.
func (l *lastLines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.text = append(l.text, b...)
	l.text = l.text[max(0, len(l.text)-lastLinesMax):]
	return len(b), nil
}

func (l *lastLines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.TrimSpace(string(l.text))
}
