package tests

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// program is the program, built once for all tests of processes.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "kvferry-test-")
	if err != nil {
		return "", err
	}
	programDir = dir
	path := filepath.Join(dir, "kvferry")
	out, err := exec.Command("go", "build", "-o", path, "kvferry/cmd/node").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

var programDir string // "" until something was built

func TestMain(m *testing.M) {
	code := m.Run()
	if programDir != "" {
		os.RemoveAll(programDir)
	}
	os.Exit(code)
}

// demoResult is what scripts rely on.
type demoResult struct {
	Rooms         int     `json:"rooms"`
	Failed        int     `json:"failed"`
	WrongBytes    int64   `json:"wrong_bytes"`
	Bytes         int64   `json:"bytes"`
	Seconds       float64 `json:"seconds"`
	GBPerS        float64 `json:"gb_per_s"`
	P50           float64 `json:"p50_ms"`
	P99           float64 `json:"p99_ms"`
	PlannedCopies int64   `json:"planned_copies"`
	Nodes         []struct {
		Name  string `json:"name"`
		Role  string `json:"role"`
		PID   int    `json:"pid"`
		Rooms int    `json:"rooms"`
		Bytes int64  `json:"bytes"`
	} `json:"nodes"`
	Failures []struct {
		Room   uint64 `json:"room"`
		Reason string `json:"reason"`
	} `json:"failures"`
}

// demo runs a demo to its end. said is called with each line that it says for
// people, and the process ids of its nodes so far.
func demo(t *testing.T, said func(line string), args ...string) (demoResult, int) {
	t.Helper()
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, path, append([]string{"demo", "-o", "json"}, args...)...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) } // it ends its nodes
	c.WaitDelay = 20 * time.Second
	var out bytes.Buffer
	c.Stdout = &out
	stderr, err := c.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		t.Log(lines.Text())
		if said != nil {
			said(lines.Text())
		}
	}
	code := 0
	var exit *exec.ExitError
	if err := c.Wait(); errors.As(err, &exit) {
		code = exit.ExitCode()
	} else if err != nil {
		t.Fatal(err)
	}
	var r demoResult
	if err := json.Unmarshal(out.Bytes(), &r); err != nil {
		t.Fatalf("%v in %q", err, out.String())
	}
	return r, code
}

func TestDemoMovesEveryByteBetweenProcesses(t *testing.T) {
	for name, args := range map[string][]string{
		"gqa":             {"--rooms", "12", "--layers", "4"},
		"gqa, layouts":    {"--rooms", "8", "--layers", "4", "--prefill", "tp=2,pp=2,page=16", "--decode", "tp=4,page=64,layout=hnd"},
		"mla":             {"--rooms", "8", "--layers", "4", "--model", "deepseek-v2-lite", "--prefill", "tp=4", "--decode", "tp=2"},
		"replicated head": {"--rooms", "4", "--layers", "4", "--model", "qwen3-235b-a22b", "--prefill", "tp=8,pp=2", "--decode", "tp=2"},
	} {
		t.Run(name, func(t *testing.T) {
			r, code := demo(t, nil, args...)
			if code != 0 || r.Failed != 0 || r.WrongBytes != 0 || r.Bytes == 0 || len(r.Failures) != 0 {
				t.Errorf("exit code %d, %+v", code, r)
			}
			if want, _ := strconv.Atoi(args[1]); r.Rooms != want {
				t.Errorf("%d rooms, want %d", r.Rooms, want)
			}
			if r.PlannedCopies == 0 || r.P50 <= 0 || r.P99 < r.P50 || r.GBPerS <= 0 {
				t.Errorf("figures: %+v", r)
			}
		})
	}
}

// Both deployments may be files, with a model of their own.
func TestDemoTakesDeploymentFiles(t *testing.T) {
	file := filepath.Join(t.TempDir(), "small.yaml")
	text := `model:
  id: small
  components:
    - {name: k, kind: paged, layers: 2, heads: 4, head_bytes: 256, dtype: bf16}
    - {name: v, kind: paged, layers: 2, heads: 4, head_bytes: 256, dtype: bf16}
parallel: {tp: 2, pp: 1, dp: 1}
page_tokens: 16
layout: nhd
`
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	r, code := demo(t, nil, "--prefill", file, "--decode", file, "--rooms", "5")
	if code != 0 || r.Rooms != 5 || r.Failed != 0 || r.WrongBytes != 0 {
		t.Errorf("exit code %d, %+v", code, r)
	}
}

func TestDemoSeesASpoiledByte(t *testing.T) {
	r, code := demo(t, nil, "--rooms", "8", "--layers", "4", "--flip-byte")
	if code != 1 || r.WrongBytes == 0 {
		t.Errorf("exit code %d and %d wrong bytes, want 1 and more than 0", code, r.WrongBytes)
	}
}

func TestKilledDecodeProcessEndsItsRoomsAndTheOthersFinish(t *testing.T) {
	nodePID := regexp.MustCompile(`(decode\S*) \(pid (\d+)\)`)
	var killed string
	var gone atomic.Bool
	r, code := demo(t, func(line string) {
		if found := nodePID.FindAllStringSubmatch(line, -1); len(found) == 2 && killed == "" {
			pid, err := strconv.Atoi(found[1][2])
			if err != nil {
				t.Fatal(err)
			}
			killed = found[1][1]
			time.AfterFunc(2*time.Second, func() { // in the middle of it
				_ = syscall.Kill(pid, syscall.SIGKILL) // a node of the demo that this test started
				gone.Store(true)
			})
		}
	}, "--rooms", "300", "--layers", "12")
	if !gone.Load() {
		t.Fatal("no decode process was killed")
	}
	if code != 1 || r.Failed == 0 || r.Failed == r.Rooms || r.WrongBytes != 0 {
		t.Errorf("exit code %d, %d of %d rooms failed, %d wrong bytes", code, r.Failed, r.Rooms, r.WrongBytes)
	}
	for _, f := range r.Failures {
		if !strings.Contains(f.Reason, killed) {
			t.Errorf("room %d: reason is %q, want one that names %s", f.Room, f.Reason, killed)
		}
	}
}

// A node that runs by itself tells who joins and leaves, and ends in order.
func TestRunFindsOthersAndLeaves(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	start := func(args ...string) (*exec.Cmd, *lineLog) {
		c := exec.Command(path, append([]string{"run", "--bind", "127.0.0.1:0"}, args...)...)
		log := &lineLog{news: make(chan struct{}, 1)}
		c.Stderr = log
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		return c, log
	}
	a, aLog := start("--name", "a")
	defer a.Process.Kill()
	address := aLog.find(t, regexp.MustCompile(`"gossip": ?"([^"]+)"`))
	b, bLog := start("--name", "b", "--join", address)
	defer b.Process.Kill()
	aLog.find(t, regexp.MustCompile(`(?i)(join|link up).*b#`))
	bLog.find(t, regexp.MustCompile(`(?i)(join|link up).*a#`))
	for _, c := range []*exec.Cmd{b, a} {
		if err := c.Process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		if err := c.Wait(); err != nil {
			t.Errorf("ended with %v", err)
		}
	}
	aLog.find(t, regexp.MustCompile(`(?i)(left|leav).*b#|b#.*(left|leav)`))
}

// A process that is stopped is given up, by its peers' links and by nobody's clock here:
// notice_test.go has the bound. When it goes on, it is the same incarnation, and the link
// comes up again.
func TestAStoppedProcessIsGivenUpAndComesBack(t *testing.T) {
	path, err := program()
	if err != nil {
		t.Fatal(err)
	}
	start := func(args ...string) (*exec.Cmd, *lineLog) {
		c := exec.Command(path, append([]string{"run", "--bind", "127.0.0.1:0"}, args...)...)
		log := &lineLog{news: make(chan struct{}, 1)}
		c.Stderr = log
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Process.Kill(); _ = c.Wait() })
		return c, log
	}
	_, log := start("--name", "a")
	address := log.find(t, regexp.MustCompile(`"gossip": ?"([^"]+)"`))
	b, _ := start("--name", "b", "--join", address)
	log.find(t, regexp.MustCompile(`link up`))
	since := time.Now()
	if err := b.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	log.find(t, regexp.MustCompile(`link lost`))
	t.Logf("lost after %v", time.Since(since))
	if err := b.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	log.find(t, regexp.MustCompile(`(?s)link lost.*link up`))
}

// lineLog is the log of a process, to wait for a line in.
type lineLog struct {
	mu   sync.Mutex
	text bytes.Buffer
	news chan struct{}
}

func (l *lineLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case l.news <- struct{}{}:
	default:
	}
	return l.text.Write(b)
}

// find waits for a match and returns its group, or all of it.
func (l *lineLog) find(t *testing.T, want *regexp.Regexp) string {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		l.mu.Lock()
		found := want.FindStringSubmatch(l.text.String())
		l.mu.Unlock()
		if found != nil {
			return found[len(found)-1]
		}
		select {
		case <-l.news:
		case <-timeout:
			l.mu.Lock()
			defer l.mu.Unlock()
			t.Fatalf("no line matches %s in:\n%s", want, l.text.String())
		}
	}
}
