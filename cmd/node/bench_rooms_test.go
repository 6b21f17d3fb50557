package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// asRooms makes the test binary the program: the other processes of a measurement are
// started with its arguments.
const asRooms = "KVFERRY_TEST_AS_ROOMS"

func init() {
	if os.Getenv(asRooms) == "" {
		return
	}
	code, text := exitOf(newRootCommand().Execute())
	os.Stderr.WriteString(text)
	os.Exit(code)
}

// benchRooms runs the command, short.
func benchRooms(t *testing.T, args ...string) *roomsResult {
	t.Helper()
	t.Setenv(asRooms, "1")
	var out bytes.Buffer
	c := newRootCommand()
	c.SetOut(&out)
	c.SetErr(io.Discard)
	c.SetArgs(append([]string{"bench", "rooms", "--seconds", "0.2", "--rounds", "1", "-o", "json"}, args...))
	if err := c.Execute(); err != nil {
		t.Fatal(err)
	}
	r := new(roomsResult)
	if err := json.Unmarshal(out.Bytes(), r); err != nil {
		t.Fatalf("%v: %s", err, out.Bytes())
	}
	return r
}

func TestRoomsAreMeasuredBesideRemoting(t *testing.T) {
	profiles := t.TempDir()
	r := benchRooms(t, "--in-flight", "1,16", "--messages", "--profile", profiles)
	if r.Provider != "tcp" || r.Model != "bench" || r.Tokens != benchRoomsPage || r.RoomBytes != 16<<10 || r.RemotingRTTUS <= 0 || len(r.InFlight) != 2 {
		t.Fatalf("%+v", r)
	}
	for i, c := range r.InFlight {
		if c.InFlight != []int{1, 16}[i] || c.RoomsPerS <= 0 || c.P50US <= 0 || c.P99US < c.P50US || c.CPUUSPerRoom <= 0 ||
			c.RemotingPerS <= 0 || c.CPUUSPerReq <= 0 || c.RateFraction <= 0 || c.LatencyFactor <= 0 || len(c.Rounds) != 1 {
			t.Errorf("%+v", c)
		}
		if len(c.Messages) < 10 {
			t.Errorf("%d in flight: messages are %v", c.InFlight, c.Messages)
		}
	}
	for _, name := range []string{"rooms-1-prefill.pprof", "rooms-16-decode.pprof", "rooms-16-decode-allocs.pprof"} {
		if s, err := os.Stat(filepath.Join(profiles, name)); err != nil || s.Size() == 0 {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestLargeRoomsAreMeasuredBesideTheTransport(t *testing.T) {
	r := benchRooms(t, "--bytes", "10MiB", "--pool", "64MiB")
	if r.Model != bytesModel || r.RoomBytes != 12<<20 || len(r.InFlight) != 1 { // whole pages of 4 MiB
		t.Fatalf("%+v", r)
	}
	c := r.InFlight[0]
	if c.InFlight != 1 || c.GBPerS <= 0 || c.LimitGBPerS <= 0 || c.Fraction <= 0 || c.RemotingPerS != 0 {
		t.Errorf("%+v", c)
	}
}

func TestRoomsTextHasARowForEachCase(t *testing.T) {
	r := &roomsResult{Provider: "tcp", Model: "bench", Tokens: 16, RoomBytes: 16 << 10, Rounds: 3, RemotingRTTUS: 70, InFlight: []roomsCaseResult{
		{InFlight: 64, RoomsPerS: 19876, P50US: 1234, P99US: 5678, LatencyFactor: 17.6, CPUUSPerRoom: 90, RemotingPerS: 80000, RateFraction: 0.248,
			Messages: []roomsMessages{{"decode", "engine <- FreePages", 1}}},
	}}
	var out bytes.Buffer
	if err := r.print(&out, "text"); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"16 KiB", "round trip 70 us", "19,876", "1,234", "5,678", "80,000", "0.248", "engine <- FreePages"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in\n%s", want, out.String())
		}
	}
}

func TestRoomsPictureHasRatesAndTimes(t *testing.T) {
	r := &roomsResult{Provider: "tcp", Model: "bench", Tokens: 16, RoomBytes: 16 << 10, Rounds: 2, RemotingRTTUS: 70, InFlight: []roomsCaseResult{
		{InFlight: 64, RoomsPerS: 9000, P50US: 7000, P99US: 9000, RemotingPerS: 60000,
			Rounds: []roomsRound{{8000, 8000, 9000, 60000}, {10000, 6000, 9000, 60000}}},
		{InFlight: 1, RoomsPerS: 2000, P50US: 450, P99US: 900, RemotingPerS: 14000},
	}}
	p := r.picture()
	rate, times := p.panels[0].series, p.panels[1].series
	if got, want := fmt.Sprint(rate[0].points), "[{1 2000 0 0} {64 9000 8000 10000}]"; got != want {
		t.Errorf("rooms are %s, want %s", got, want)
	}
	if got, want := fmt.Sprint(times[0].points), "[{1 0.45 0 0} {64 7 6 8}]"; got != want {
		t.Errorf("p50 is %s, want %s", got, want)
	}
	if rate[1].points[1].y != 60000 || times[2].points[0].y != 0.07 {
		t.Errorf("%+v", p)
	}
	r.LimitGBPerS, r.InFlight[0].LimitGBPerS = 5, 5
	if rate = r.picture().panels[0].series; rate[1].points[1].y != 5 || rate[0].points[1].y != 9000*16384/1e9 {
		t.Errorf("%+v", rate)
	}
	var b strings.Builder
	if err := p.write(&b); err != nil {
		t.Fatal(err)
	}
	isXML(t, b.String())
}

func TestBadRoomsFlagsAreNamed(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--in-flight 0", "--in-flight is 0, want 1 to 4096"},
		{"--in-flight 5000", "--in-flight is 5000, want 1 to 4096"},
		{"--in-flight 8,8", "--in-flight has 8 twice"},
		{"--seconds 0", "--seconds is 0, want more than 0"},
		{"--seconds NaN", "--seconds is NaN, want more than 0"},
		{"--rounds 0", "--rounds is 0, want 1 to 1000"},
		{"--provider mem", `--provider is "mem", want shm or verbs or tcp`},
		{"--model gpt", `--model: there is no model "gpt", want one of`},
		{"--page -1", "--page is -1, want 1 to 65536"},
		{"--bytes 1G", `--bytes is "1G", want a size such as`},
		{"--bytes 1MiB --tokens 5", "--tokens is 5 beside --bytes 1MiB, want one of them"},
		{"--tokens 99999999999", "a room is 6250000000 pages (--bytes, --tokens, --page, --model), want at most 65536"},
		{"--bytes 200GiB", "of memory (--in-flight, --bytes, --tokens), want at most"},
		{"--bytes 1MiB --pool x", `--pool is "x", want a size such as`},
		{"--plot /nowhere/a.svg", "--plot: open /nowhere/a.svg"},
		{"-o yaml", `--output is "yaml", want text or json`},
	} {
		root := newRootCommand()
		root.SetArgs(append([]string{"bench", "rooms"}, strings.Fields(c.args)...))
		root.SetOut(io.Discard)
		root.SetErr(io.Discard)
		if code, text := exitOf(root.Execute()); code != exitMalformed || !strings.Contains(text, c.want) {
			t.Errorf("%s: got %d %q, want %q", c.args, code, text, c.want)
		}
	}
}

func startedRoomsProcess(t *testing.T) *roomsProcess {
	t.Helper()
	t.Setenv(asRooms, "1")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	p, err := startRoomsProcess(self, "prefill")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.close)
	d := (&benchRoomsFlags{inFlight: []int{1}})
	size, err := d.size()
	if err != nil {
		t.Fatal(err)
	}
	_, err = p.ask(t.Context(), &roomsOrder{
		Do: doStart, Role: "prefill", Cluster: "test", Provider: "tcp", Deployment: size.deployment, Pages: size.pages, OpenRooms: size.rooms,
	})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestARoomsNodeEndsWithItsInput(t *testing.T) {
	p := startedRoomsProcess(t)
	p.input.Close() // as when the parent has died
	select {
	case a, alive := <-p.answers:
		if alive || p.end != nil {
			t.Fatalf("%+v, %v\n%s", a, p.end, &p.log)
		}
	case <-time.After(roomsLeave):
		t.Fatalf("it lives: %s", &p.log)
	}
}

func TestARoomsNodeThatDiesIsToldOf(t *testing.T) {
	p := startedRoomsProcess(t)
	p.command.Process.Kill()
	if _, err := p.ask(t.Context(), &roomsOrder{Do: doUsage}); err == nil || !strings.Contains(err.Error(), "prefill died: signal: killed") {
		t.Fatal(err)
	}
}

func TestAnOrderThatFailsSaysWhy(t *testing.T) {
	p := startedRoomsProcess(t)
	if _, err := p.ask(t.Context(), &roomsOrder{Do: "dance"}); err == nil || err.Error() != "prefill: dance: there is no such order" {
		t.Fatal(err)
	}
}

func TestRatesLeaveTheBeginningOut(t *testing.T) {
	began := time.Unix(1000, 0)
	stop := began.Add(10 * time.Second)
	var all []sample
	for i := range 2000 { // one each 5 ms, none in the first second, some after stop
		all = append(all, sample{began.Add(time.Second + time.Duration(i)*5*time.Millisecond), time.Duration(i%100) * time.Microsecond})
	}
	f := roomFiguresOf(all, began, stop)
	if f.PerS != 200 || f.P50 != 49*time.Microsecond || f.P99 != 98*time.Microsecond {
		t.Errorf("%+v", f)
	}
	f = roomFiguresOf(all[:50], began, stop) // too few: all, until the last has ended
	if want := 50 / 1.245; math.Abs(f.PerS-want) > 1e-9 || f.P50 != 24*time.Microsecond {
		t.Errorf("%+v, want %v", f, want)
	}
	if f = roomFiguresOf(nil, began, stop); f != (roomFigures{}) {
		t.Errorf("%+v", f)
	}
}
