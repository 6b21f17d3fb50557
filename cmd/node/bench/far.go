package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"kvferry/transport/rdma"
)

// order is what the receiving side is told to do.
type order struct {
	Do          string `json:"do"`
	Provider    string `json:"provider,omitempty"`    // open: "" is none
	Connections int    `json:"connections,omitempty"` // open, loop
	Pool        uint64 `json:"pool,omitempty"`        // open
	Spec        Spec   `json:"spec"`                  // loop, clear, check
	First       int    `json:"first,omitempty"`       // check: the first write that landed
	Landed      int    `json:"landed,omitempty"`      // check: how many
	Bytes       uint64 `json:"bytes,omitempty"`       // check: that have landed since open
}

// The orders.
const (
	doOpen  = "open"  // make a pool, and a provider that the sender may write with
	doLoop  = "loop"  // serve the raw loop
	doClear = "clear" // clear the sample of a layout
	doCheck = "check" // look at it
	doUsage = "usage" // say what CPU time was used
)

// answer answers one order.
type answer struct {
	Error    string        `json:"error,omitempty"`
	Endpoint []byte        `json:"endpoint,omitempty"`
	Region   rdma.RegionID `json:"region,omitempty"`
	Grant    rdma.GrantID  `json:"grant"`
	Address  string        `json:"address,omitempty"`
	Checked  uint64        `json:"checked,omitempty"`
	Wrong    uint64        `json:"wrong,omitempty"`
	CPU      time.Duration `json:"cpu,omitempty"`
}

// far is the receiving side as the sending side sees it.
type far interface {
	ask(order) (answer, error)
	close() error
}

// process is a far that is another process. It ends when its input does, so also
// when this process has died.
type process struct {
	command *exec.Cmd
	input   io.WriteCloser
	orders  *json.Encoder
	answers *json.Decoder
	stop    context.Context
}

// startProcess starts the command, which calls Serve. It is killed when ctx is done.
func startProcess(ctx context.Context, command []string) (*process, error) {
	c := exec.CommandContext(ctx, command[0], command[1:]...)
	c.Stderr = os.Stderr
	// A Ctrl-C in the terminal is for this process, which ends the other.
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	in, err := c.StdinPipe()
	if err != nil {
		return nil, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := c.Start(); err != nil {
		return nil, fmt.Errorf("start the other process: %w", err)
	}
	return &process{command: c, input: in, orders: json.NewEncoder(in), answers: json.NewDecoder(out), stop: ctx}, nil
}

func (p *process) ask(o order) (answer, error) {
	// One that does not answer is killed, and the reading ends.
	late := time.AfterFunc(patience, func() { _ = p.command.Process.Kill() })
	defer late.Stop()
	var a answer
	err := p.orders.Encode(&o)
	if err == nil {
		err = p.answers.Decode(&a)
	}
	switch {
	case p.stop.Err() != nil:
		return answer{}, p.stop.Err()
	case err != nil:
		return answer{}, fmt.Errorf("the other process has ended, or did not answer in %s: %w", patience, err)
	case a.Error != "":
		return answer{}, errors.New(a.Error)
	}
	return a, nil
}

// close ends the process and waits for it.
func (p *process) close() error {
	_ = p.input.Close()
	late := time.AfterFunc(farewell, func() { _ = p.command.Process.Kill() })
	defer late.Stop()
	if err := p.command.Wait(); err != nil && p.stop.Err() == nil {
		return fmt.Errorf("the other process: %w", err)
	}
	return nil
}

// Serve is the receiving side in a process of its own: orders come in, answers go
// out. It returns when the orders end.
func Serve(in io.Reader, out io.Writer) error {
	r := newReceiver(openProvider)
	defer r.close()
	orders, answers := json.NewDecoder(in), json.NewEncoder(out)
	for {
		var o order
		if err := orders.Decode(&o); err != nil {
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		a, err := r.ask(o)
		if err != nil {
			a = answer{Error: err.Error()}
		}
		if err := answers.Encode(&a); err != nil {
			return err
		}
	}
}
